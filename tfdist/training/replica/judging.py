"""Rules by which results of parts of a batch become those of the whole batch, found by trying.

The result of k examples (``whole``) is compared with those of two parts of them and of the same examples given twice. A
mean is the mean of the parts' results weighted by examples, and stays the same for twice the examples. A sum is the sum
of the parts' results, and doubles for twice the examples. A mask or a contrast between examples is neither: it divides
by something else than examples. `judge` does this for values, `judge_state` for states, which also depend on their
former values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

Verdict = Literal["unknown", "mean", "sum", "neither", "whole", "equal", "maximum", "minimum", "last"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

#: Dependence of a state's new value on its former one, read off the graph of a step:
#: none; the former value is added to; it is scaled, and added to; some of its elements are replaced; the larger or the
#: smaller of it and a new value is taken; anything else
Dependence = Literal["none", "added", "scaled", "replaced", "selected", "other"]

#: a state before a step, and after it
Change = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class StateRule:
    """The rule for the values that replicas give a state."""

    verdict: Verdict
    kept: float = 1.0
    at_once: bool = False


@dataclass(frozen=True)
class Rules:
    """The rules for the results of a step; results that are not listed are means."""

    values: Mapping[tuple[str, int], Verdict] = field(default_factory=dict)
    states: Mapping[int, StateRule] = field(default_factory=dict)


NO_RULES = Rules()

# relative to the values: float32's loss where a state is large compared with what a step adds
_ROUNDING = 1e-6


def judge(
    whole: np.ndarray,
    parts: Sequence[tuple[float, np.ndarray]],
    twice: np.ndarray | None,
    *,
    tolerance: float,
    is_random: bool = False,
) -> Verdict:
    """Return the verdict on a value of a batch.

    Example:
        >>> x = np.array([1.0, 2.0, 4.0])
        >>> def tried(f):
        ...     return judge(f(x), [(1 / 3, f(x[:1])), (2 / 3, f(x[1:]))], f(np.tile(x, 2)), tolerance=1e-6)
        >>> tried(lambda x: np.array([x.mean()])), tried(lambda x: np.array([x.sum()]))
        ('mean', 'sum')
        >>> tried(lambda x: np.array([x[x > 1].sum() / max(1, (x > 1).sum())])), tried(lambda x: np.zeros(1))
        ('neither', 'unknown')
    """
    values = [whole, *([] if twice is None else [twice]), *(value for _, value in parts)]
    if not np.isfinite(whole).all() or not np.any(whole):
        return "unknown"
    if not all(np.isfinite(value).all() for value in values):  # a mask under which a part has nothing
        return "neither"
    if is_random and twice is not None:
        return _by_size(whole, twice)
    equal = _within(tolerance * max(float(np.abs(value).max()) for value in values))
    return _mean_or_sum(whole, parts, twice, equal)


def judge_state(
    whole: Change,
    parts: Sequence[tuple[float, Change]],
    twice: Change | None,
    *,
    dependence: Dependence,
    kept: float = 1.0,
    tolerance: float,
    is_random: bool = False,
) -> Verdict:
    """Return the verdict on the values that replicas give a state.

    Example:
        >>> x, count = np.array([1.0, 2.0, 4.0]), np.array([7.0])
        >>> def tried(f, dependence):
        ...     parts = [(1 / 3, (count, f(x[:1]))), (2 / 3, (count, f(x[1:])))]
        ...     twice = (count, f(np.tile(x, 2)))
        ...     return judge_state((count, f(x)), parts, twice, dependence=dependence, tolerance=1e-6)
        >>> tried(lambda x: count + len(x), "added"), tried(lambda x: np.maximum(count - 5, x.max()), "selected")
        ('sum', 'maximum')
        >>> tried(lambda x: count + 0.1 * x.mean(), "added"), tried(lambda x: count + 1, "added")
        ('mean', 'equal')
        >>> tried(lambda x: (count + len(x)) % 9, "other")
        'neither'
    """
    if not np.isfinite(whole[1]).all():
        return "unknown"
    base = {"none": 0.0, "scaled": kept}.get(dependence, 1.0)

    def change(of: Change) -> np.ndarray:
        former, value = map(_wide, of)
        return value - base * former if base else value

    of_whole, of_parts = change(whole), [change(part) for _, part in parts]
    of_twice = None if twice is None else change(twice)
    changes = [of_whole, *of_parts, *([] if of_twice is None else [of_twice])]
    if not all(np.isfinite(one).all() for one in changes):
        return "neither"
    sizes = [float(np.abs(one).max(initial=0.0)) for one in changes]
    if not any(sizes) and dependence != "none":
        return "unknown"
    equal = _within(tolerance * max(sizes) + _ROUNDING * float(np.abs(_wide(whole[0])).max(initial=0.0)))
    if all(equal(of_whole, one) for one in changes):
        return "equal"
    is_whole_of_twice = of_twice is None or equal(of_whole, of_twice)
    if dependence in ("none", "selected") and is_whole_of_twice and of_parts:
        found = {"maximum": np.max(of_parts, axis=0), "minimum": np.min(of_parts, axis=0), "last": of_parts[-1]}
        verdict: Verdict
        for verdict in ("maximum", "minimum", "last"):
            if equal(of_whole, found[verdict]) and (verdict != "last" or dependence == "none"):
                return verdict
    if dependence in ("selected", "other"):
        return "neither"  # an average of such values is no value that any batch would give
    if dependence == "replaced":  # each element by one replica
        return "sum" if of_parts and equal(of_whole, np.sum(of_parts, axis=0)) else "neither"
    if is_random and of_twice is not None:
        return _by_size(of_whole.ravel(), of_twice.ravel())
    shared = [(share, one) for (share, _), one in zip(parts, of_parts, strict=True)]
    return _mean_or_sum(of_whole, shared, of_twice, equal)


def agreed(verdicts: Sequence[Verdict]) -> Verdict:
    """Return the verdict that follows from trials of other examples: of all workers, or of other parts of a batch.

    A trial that shows neither a mean nor a sum decides, whatever the others have shown.

    Example:
        >>> agreed(["mean", "unknown"]), agreed(["mean", "neither"])
        ('mean', 'neither')
        >>> agreed(["mean", "whole"]), agreed(["mean", "equal"])
        ('whole', 'mean')
    """
    known = [verdict for verdict in dict.fromkeys(verdicts) if verdict != "unknown"]
    if "whole" in known and "neither" not in known:
        return "whole"
    if set(known) == {"mean", "equal"}:
        return "mean"
    return "unknown" if not known else known[0] if len(known) == 1 else "neither"


def agreed_rule(rules: Sequence[StateRule]) -> StateRule:
    """Return the rule of all workers, or of all assignments of one state."""
    known = [rule for rule in rules if rule.verdict not in ("unknown", "neither")] or list(rules)
    verdict = agreed([rule.verdict for rule in rules])
    if len({round(rule.kept, 5) for rule in known}) > 1:
        verdict = "neither"
    return StateRule(verdict, known[0].kept, any(rule.at_once for rule in rules))


def _wide(values: np.ndarray) -> np.ndarray:
    return values.astype(np.promote_types(values.dtype, np.float64))


def _within(allowed: float) -> Callable[[np.ndarray, np.ndarray], bool]:
    return lambda one, other: bool((np.abs(one - other) <= allowed).all())


def _by_size(whole: np.ndarray, twice: np.ndarray) -> Verdict:
    size = float(np.vdot(whole, whole))
    return "sum" if size and 1.5 < float(np.vdot(whole, twice)) / size < 3.0 else "mean"


def _mean_or_sum(
    whole: np.ndarray,
    parts: Sequence[tuple[float, np.ndarray]],
    twice: np.ndarray | None,
    equal: Callable[[np.ndarray, np.ndarray], bool],
) -> Verdict:
    def is_it(factor: float, weights: Sequence[float]) -> bool:
        total = sum((weight * value for weight, (_, value) in zip(weights, parts, strict=True)), np.zeros_like(whole))
        return (twice is None or equal(twice, factor * whole)) and (not parts or equal(whole, total))

    if is_it(1.0, [share for share, _ in parts]):
        return "mean"
    return "sum" if is_it(2.0, [1.0] * len(parts)) else "neither"
