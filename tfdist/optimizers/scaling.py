"""The learning rate that goes with a batch."""

import math
from collections.abc import Callable
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError

_FACTORS: dict[str, Callable[[float], float]] = {"linear": float, "sqrt": math.sqrt, "none": lambda ratio: 1.0}

# By the names of their classes. The update of the first is proportional to the gradient; the others divide it by its
# own size, so what grows with the batch is how sure they are of its direction.
_LINEAR = frozenset({"sgd", "lars"})
_SQRT = frozenset(
    {"adadelta", "adafactor", "adagrad", "adam", "adamax", "adamw", "ftrl", "lamb", "lion", "muon", "nadam", "rmsprop"}
)


def scale_learning_rate(
    base: float, base_batch: int, batch: int, rule: str | None = None, *, optimizer: Any = "sgd"
) -> float:
    """Return the learning rate for a batch, given one that is good for another batch.

    With k = batch / base_batch:

        linear    base * k          k small steps, at weights that hardly differ, become one
        sqrt      base * sqrt(k)    the variance of an update stays
        none      base

    None of them holds for every k: beyond the gradient noise scale a larger batch does not allow a larger rate. Begin
    with a `Warmup`, of some epochs: at the start weights change too fast for a large rate.

    Args:
        base: learning rate for ``base_batch``.
        base_batch: examples of a batch over all replicas.
        batch: likewise, of the batch that is wanted.
        rule: "linear", "sqrt" or "none"; None: the one that goes with the optimizer.
        optimizer: a Keras optimizer, its class or its name; "linear" goes with SGD and LARS, "sqrt" with those that
            divide gradients by their size (Adam, Lamb, RMSprop and their like).
    Returns:
        The learning rate.
    Raises:
        ConfigError: a number that is not above 0, an unknown rule, or no rule and an optimizer of an unknown family.

    Example:
        >>> scale_learning_rate(0.1, 256, 2048)
        0.8
        >>> round(scale_learning_rate(1e-3, 256, 2048, optimizer="adam"), 6)
        0.002828

    Source: P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017 (linear); A. Krizhevsky,
    "One weird trick for parallelizing convolutional neural networks", 2014, and E. Hoffer, I. Hubara, D. Soudry, "Train
    longer, generalize better", 2017 (sqrt); S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms", 2022 (sqrt for Adam, which scales its betas too: that is not done here).
    """
    validation.number("base", base, above=0)
    validation.integer("base_batch", base_batch, minimum=1)
    validation.integer("batch", batch, minimum=1)
    return base * factor(_rule_of(optimizer) if rule is None else rule, batch / base_batch)


def factor(rule: str, ratio: float) -> float:
    """Return what a learning rate is multiplied by when the batch is multiplied by a ratio.

    Example:
        >>> factor("linear", 4.0), factor("sqrt", 4.0), factor("none", 4.0)
        (4.0, 2.0, 1.0)
    """
    require_rule("rule", rule)
    return _FACTORS[rule](ratio)


def require_rule(name: str, rule: str) -> None:
    """Raise if a rule is none."""
    if rule not in _FACTORS:
        raise ConfigError(
            f"{name} is {validation.shown(rule)}; it must be one of {', '.join(_FACTORS)}.",
            name=name,
            received=validation.shown(rule),
        )


def _rule_of(optimizer: Any) -> str:
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    kind = optimizer if isinstance(optimizer, (str, type)) else type(optimizer)
    names = [kind.lower()] if isinstance(kind, str) else [one.__name__.lower() for one in kind.__mro__]
    for name in names:
        if name in _LINEAR | _SQRT:
            return "linear" if name in _LINEAR else "sqrt"
    raise ConfigError(
        f"optimizer is {validation.shown(optimizer)}, of which it is not known how its learning rate goes with the "
        "batch. Pass rule='linear', 'sqrt' or 'none'.",
        name="optimizer",
        received=validation.shown(optimizer),
    )
