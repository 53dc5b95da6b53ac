"""Shares of classes by their effective numbers, and the prior that a model sees with them. Pure, in NumPy."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.order.class_lists import ClassLists
from tfdist.errors import ConfigError, ConfigTypeError

_Floats = NDArray[np.float64]
_MOST_NUMBERS = 10_000  # of classes by their numbers; larger numbers are names


def effective_shares(counts: Mapping[Any, int], beta: float) -> dict[Any, float]:
    """Return a share for each class from its effective number of examples, between proportional and equal shares.

    A model that reads in these shares learns from the same mean loss as one whose loss has the class-balanced weights
    of Cui et al.: ``(1 - beta) / (1 - beta ** n)`` for each example of a class of n. With ``beta=0`` each class has its
    share of the examples; near 1, all classes have about the same. A class of far more than ``1 / (1 - beta)`` examples
    counts by its number, and of far fewer, classes are alike.

    Args:
        counts: the number of examples of each class, as in ``tfdist.data.info(...).labels``.
        beta: the parameter of the paper, from 0 to below 1; the paper uses 0.9 to 0.9999.
    Returns:
        The shares, which add up to 1, for ``order`` of `tfdist.data.read`.
    Raises:
        ConfigError: there is no class, a count is negative, all are 0, or beta is out of range.
    Source:
        Y. Cui, M. Jia, T.-Y. Lin, Y. Song, S. Belongie, "Class-Balanced Loss Based on Effective Number of Samples",
        CVPR 2019.

    Example:
        >>> {kind: round(share, 3) for kind, share in effective_shares({"cat": 900, "dog": 100}, beta=0.99).items()}
        {'cat': 0.851, 'dog': 0.149}
    """
    if not isinstance(counts, Mapping) or not counts:
        raise validation.mismatch("counts", counts, "a mapping of classes to counts.", kind=ConfigTypeError)
    beta = validation.number("beta", beta, minimum=0.0)
    if beta >= 1:
        raise ConfigError(f"beta is {beta}; it must be below 1. order='balanced' makes classes alike.", name="beta")
    numbers = {key: validation.integer(f"count of {key!r}", count, minimum=0) for key, count in counts.items()}
    if not any(numbers.values()):
        raise ConfigError("counts are all 0; a class must have an example.", name="counts")
    # 1 - beta ** n without the digits that it loses near beta = 1
    found = {
        key: n * (1 - beta) / -math.expm1(n * math.log(beta)) if beta and n else float(n) for key, n in numbers.items()
    }
    total = math.fsum(found.values())
    return {key: share / total for key, share in found.items()}


@dataclass(frozen=True)
class Prior:
    """The frequency of each class in the data and in what a model reads, which differ if an order has shares.

    A model predicts by the shares of its training, even if those of the world differ. `offsets` corrects its logits.

    Attributes:
        classes: the classes, in the order of logits: integers from 0 on, or texts in their order.
        true: the share of examples of each class, float64 ``[classes]``.
        seen: the share of the positions of an epoch with each class, in the long run, float64 ``[classes]``.
        is_exclusive: whether each example has one class; otherwise a model has a sigmoid for each.

    Example:
        >>> prior = Prior(("cat", "dog"), np.array([0.9, 0.1]), np.array([0.5, 0.5]), is_exclusive=True)
        >>> logits = np.log([0.5, 0.5])  # a model that knows nothing but what it has seen
        >>> np.exp(prior.corrected(logits)).round(3).tolist()
        [0.9, 0.1]
    """

    classes: tuple[Any, ...]
    true: _Floats
    seen: _Floats
    is_exclusive: bool

    @property
    def offsets(self) -> _Floats:
        """The terms to add to logits: log(true / seen) for a softmax; for sigmoids the difference of the log-odds.

        A class that the model never sees gets -inf, so its probability is 0.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.log(self.true / self.seen)
            if not self.is_exclusive:
                found -= np.log((1 - self.true) / (1 - self.seen))
                found[self.seen >= 1] = 0.0  # in every example: the logit says nothing
        found[self.seen <= 0] = -np.inf
        return found

    def corrected(self, logits: Any) -> Any:
        """Return logits (NumPy or TensorFlow) corrected to the true prior.

        Args:
            logits: the logits of a model trained in the shares of `seen`, ``[..., classes]``; for two exclusive classes
                also ``[..., 1]``, the logit of the second class.
        Raises:
            ConfigError: the logits have another number of classes.
        """
        logits = logits if hasattr(logits, "shape") else np.asarray(logits)
        offsets, width = self.offsets, logits.shape[-1] if len(logits.shape) else 0
        if self.is_exclusive and len(offsets) == 2 and width == 1:
            offsets = offsets[1:] - offsets[:1]
        if width != len(offsets):
            raise ConfigError(
                f"logits have {width} values each, and there are {len(offsets)} classes: "
                f"{validation.shown(list(self.classes))}. Pass a logit for each class, in this order.",
                name="logits",
                received=width,
            )
        dtype = np.dtype(getattr(logits.dtype, "as_numpy_dtype", logits.dtype))
        return logits + (offsets if dtype.kind in "iub" else offsets.astype(dtype))


def prior_of(labels: ClassLists, of_examples: _Floats, *, count: int) -> Prior:
    """Return the prior from the labels of the examples and the frequencies of reading them, which add up to 1.

    `count` is the number of classes if the feature states it, else 0.
    """
    known = [kind for kind in labels.classes if kind is not None]
    true = labels.counts / labels.examples
    seen = labels.frequencies(of_examples)
    is_number = all(isinstance(kind, int) for kind in known)
    if is_number and known and min(known) >= 0 and max(known) < max(count, _MOST_NUMBERS):
        known = list(range(max(count, max(known) + 1)))
    place = {kind: at for at, kind in enumerate(labels.classes)}
    found = [[float(of[place[kind]]) if kind in place else 0.0 for kind in known] for of in (true, seen)]
    return Prior(tuple(known), np.array(found[0]), np.array(found[1]), labels.is_exclusive and None not in place)
