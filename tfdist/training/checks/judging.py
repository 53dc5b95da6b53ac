"""Whether a number or a gradient of a batch is a mean over its examples, their sum, or neither: found out by trying.

What is computed of k examples (``whole``) is compared with what is computed of two parts of them and of the same
examples given twice. A mean is the mean of the parts' by examples, and twice the examples have the same; a sum is the
parts' sum, and twice as much of twice the examples. A mask or a contrast between examples is neither: it divides by
something else than examples, so the parts do not lead to the whole.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np

Verdict = Literal["mean", "sum", "neither", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("unknown", "mean", "sum", "neither")


def judge(
    whole: np.ndarray,
    parts: Sequence[tuple[float, np.ndarray]],
    twice: np.ndarray,
    *,
    tolerance: float,
    is_random: bool = False,
) -> Verdict:
    """Return what a value of a batch is.

    Args:
        whole: the value for k examples, as a vector.
        parts: for each part of them its share of the examples and its value; empty where they cannot be parted.
        twice: the value for the same examples given twice.
        tolerance: largest difference, relative to the largest value, that is rounding.
        is_random: whether the values contain random numbers, drawn anew for each: then only their size tells a sum
            from a mean, and everything else is taken for a mean.

    Example:
        >>> x = np.array([1.0, 2.0, 4.0])
        >>> def tried(f):
        ...     return judge(f(x), [(1 / 3, f(x[:1])), (2 / 3, f(x[1:]))], f(np.tile(x, 2)), tolerance=1e-6)
        >>> tried(lambda x: np.array([x.mean()])), tried(lambda x: np.array([x.sum()]))
        ('mean', 'sum')
        >>> tried(lambda x: np.array([x[x > 1].sum() / max(1, (x > 1).sum())])), tried(lambda x: np.zeros(1))
        ('neither', 'unknown')
    """
    values = [whole, twice, *(value for _, value in parts)]
    if not np.isfinite(whole).all() or not np.any(whole):
        return "unknown"
    if not all(np.isfinite(value).all() for value in values):  # a mask under which a part has nothing
        return "neither"
    if is_random:
        ratio = float(np.vdot(whole, twice) / np.vdot(whole, whole))
        return "sum" if 1.5 < ratio < 3.0 else "mean"
    allowed = tolerance * max(float(np.abs(value).max()) for value in values)

    def equal(one: np.ndarray, other: np.ndarray) -> bool:
        return bool((np.abs(one - other) <= allowed).all())

    def is_it(factor: float, weights: Sequence[float]) -> bool:
        total = sum((weight * value for weight, (_, value) in zip(weights, parts, strict=True)), np.zeros_like(whole))
        return equal(twice, factor * whole) and (not parts or equal(whole, total))

    if is_it(1.0, [share for share, _ in parts]):
        return "mean"
    return "sum" if is_it(2.0, [1.0] * len(parts)) else "neither"


def agreed(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict of all workers, of which each has tried examples of its own.

    Example:
        >>> agreed(["mean", "unknown"]), agreed(["mean", "neither"]), agreed(["unknown"])
        ('mean', 'neither', 'unknown')
    """
    known = [verdict for verdict in dict.fromkeys(verdicts) if verdict != "unknown"]
    return "unknown" if not known else known[0] if len(known) == 1 else "neither"
