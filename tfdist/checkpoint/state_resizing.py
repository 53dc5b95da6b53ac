"""State of which every replica or worker has its own, and its resizing to another number of them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError

_Array = NDArray[Any]
Rule = Literal["keep", "reset", "sum", "mean", "concatenate", "owned", "refuse"]
Axis = Literal["replica", "worker"]

#: What each rule does with another number of shards, for messages.
DOES: dict[str, str] = {
    "keep": "each keeps its own, a new one gets a copy, and what is left over is dropped",
    "reset": "set to zero",
    "sum": "added up, and the sum divided evenly",
    "mean": "each takes the mean",
    "concatenate": "joined, and divided anew",
    "owned": "moved to the worker that owns them now",
    "refuse": "refused",
}


class ShardedState:
    """Variables of which every replica or worker has its own values, to be kept in backups.

    If a model, an optimizer or a strategy has a method ``sharded_state()`` that returns a list of these,
    `tfdist.callbacks.BackupAndRestore` saves them: every worker writes its own part. With the same number of shards
    each resumes with its own values, bit for bit. Return the state before its variables exist, too, without variables.

    Args:
        name: the name in messages, in the plural: "the accumulated gradients".
        variables: the Keras variables, of the same number, dtype and, except for "concatenate" and "owned", shape on
            all shards.
        rule: how each variable is divided anew for another number of shards. "keep": shard i gets the value of shard
            i modulo n, of n; "reset": zeros; "sum": all get the same part of the sum over the old shards, so that the
            sum stays; of integers, the first shards get one more; "mean": all get the mean over the old shards, rounded
            for integers;
            "concatenate": rows (dim 0) of all shards in order, divided anew as
            `numpy.array_split` does; "owned": one shard has all of it and the others have no element, and this stays
            so, whichever shard it is; "refuse": an error.
        axis: "replica", or "worker" if the replicas of a worker have the same values.

    Raises:
        ConfigError: the rule or the axis is unknown, or the name is empty.

    Example:
        >>> ShardedState("the error memory", [], rule="sum")
        ShardedState('the error memory', 0 variables, rule='sum', axis='replica')
    """

    def __init__(self, name: str, variables: Iterable[Any], *, rule: Rule, axis: Axis = "replica") -> None:
        self.name = validation.text("name", name)
        self.variables = tuple(variables)
        self.rule: str = validation.one_of("rule", rule, get_args(Rule))
        self.axis: str = validation.one_of("axis", axis, get_args(Axis))

    def __repr__(self) -> str:
        count = len(self.variables)
        return f"ShardedState({self.name!r}, {count} variables, rule={self.rule!r}, axis={self.axis!r})"


def resharded(rule: str, shards: Sequence[_Array], *, index: int, count: int) -> _Array:
    """Return the new value of a shard, computed from the old shards."""
    if len(shards) == count:
        return shards[index]
    return _RULES[rule](shards, index, count)


def _sum(shards: Sequence[_Array], index: int, count: int) -> _Array:
    _require_alike(shards, [shard.shape for shard in shards])
    dtype = shards[0].dtype
    if dtype.kind in "iu":
        share, rest = _divided(shards, count)
        return _narrowed(share + (index < rest), dtype)
    if dtype.kind == "b":
        raise ConfigError("bools cannot be added up; choose another rule.", name="rule", received="sum")
    total = np.zeros(shards[0].shape, _wide(dtype))
    for shard in shards:
        total += shard.astype(total.dtype)
    return np.asarray(total / count).astype(dtype)


def _mean(shards: Sequence[_Array], index: int, count: int) -> _Array:
    _require_alike(shards, [shard.shape for shard in shards])
    dtype = shards[0].dtype
    if dtype.kind in "iu":
        share, rest = _divided(shards, len(shards))
        is_up = 2 * rest + share % 2 > len(shards)  # a half goes to the even neighbour, as `numpy.rint` has it
        return _narrowed(share + is_up, dtype)
    mean = np.mean([shard.astype(_wide(dtype)) for shard in shards], axis=0)
    return np.asarray(np.rint(mean) if dtype.kind == "b" else mean).astype(dtype)


def _wide(dtype: np.dtype[Any]) -> type[np.float64] | type[np.complex128]:
    """Return the dtype in which numbers that are no integers are added up, also those of 16 bits."""
    return np.complex128 if dtype.kind == "c" else np.float64


def _divided(shards: Sequence[_Array], count: int) -> tuple[_Array, _Array]:
    """Return the sum of integer shards divided by a number, and the rest; the sum itself may need more bits."""
    wide = np.uint64 if shards[0].dtype.kind == "u" else np.int64
    parts = [np.divmod(shard.astype(wide), wide(count)) for shard in shards]
    more, rest = np.divmod(sum(part for _, part in parts), wide(count))
    return sum(part for part, _ in parts) + more, rest


def _narrowed(values: _Array, dtype: np.dtype[Any]) -> _Array:
    """Return integers in a dtype that has to hold them."""
    limits = np.iinfo(dtype)
    if values.size and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise ConfigError(
            f"a part of the sum is {int(values.max())}, which {dtype} cannot hold. Continue with as many as before.",
            name="rule",
            received="sum",
        )
    return np.asarray(values).astype(dtype)


def _concatenate(shards: Sequence[_Array], index: int, count: int) -> _Array:
    if any(not shard.ndim for shard in shards):
        raise ConfigError(
            "numbers have no rows to be concatenated; choose another rule.", name="rule", received="concatenate"
        )
    _require_alike(shards, [shard.shape[1:] for shard in shards])
    return np.array_split(np.concatenate(shards), count)[index]


def _refuse(shards: Sequence[_Array], index: int, count: int) -> _Array:
    raise ConfigError(
        f"they are of {len(shards)} and cannot be resized to {count}; continue with as many as before.",
        name="rule",
        received="refuse",
    )


def _require_alike(shards: Sequence[_Array], shapes: Sequence[tuple[int, ...]]) -> None:
    if len(set(shapes)) > 1 or len({shard.dtype for shard in shards}) > 1:
        found = ", ".join(f"{shard.dtype}{list(shard.shape)}" for shard in shards)
        raise ConfigError(f"the shards do not fit together: {found}.", name="shards", received=found)


_RULES: dict[str, Callable[[Sequence[_Array], int, int], _Array]] = {
    "keep": lambda shards, index, count: shards[index % len(shards)],
    "reset": lambda shards, index, count: np.zeros_like(shards[0]),
    "sum": _sum,
    "mean": _mean,
    "concatenate": _concatenate,
    "owned": lambda shards, index, count: next((shard for shard in shards if shard.size), shards[0]),
    "refuse": _refuse,
}
