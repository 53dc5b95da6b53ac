"""The packing of sequences of different lengths into rows of one length."""

import bisect
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.checked_examples import Binding, Examples, payloads_of
from tfdist.data.examples.computed_examples import Columns, Computed
from tfdist.data.examples.joined_examples import Joined
from tfdist.data.format import example
from tfdist.data.format.data_manifest import Shard
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.data.order.epoch_orders import Permutation
from tfdist.data.reading.view import View, view_of
from tfdist.errors import ConfigError

_Ids = NDArray[np.int64]


def pack(
    source: Any, feature: str, length: int, *, whole: bool = False, fill: int = 0, shuffle: bool = True, seed: int = 0
) -> View:
    """Pack sequences into rows of one length, each token once; a row is an example.

    A row's content follows from its number alone, so rows are shuffled, mixed and resumed as other examples are.

    Args:
        source: a directory, a list of directories, or a result of `tfdist.data.open` or `tfdist.data.select`.
        feature: the name of a feature with lists of numbers of any length, such as the tokens of a document.
        length: the number of values in a row.
        whole: whether a sequence stays in one row if it fits; each is put where it leaves the least room, and longer
            ones are cut. Default: sequences follow each other without gaps, and continue in the next row.
        fill: the value that fills the remaining room.
        shuffle: whether sequences are permuted before they are packed. All epochs have the same rows.
        seed: the seed of this permutation.
    Returns:
        A view for `tfdist.data.read` and `tfdist.data.mix`. An example has ``feature`` ``[length]``, ``document``
        (int32 ``[length]``: 1 for the first sequence of the row, 2 for the next, 0 for the remaining room) and
        ``position`` (int32 ``[length]``: the place in the sequence).
    Raises:
        ConfigError: the feature is not a list of numbers, or there is no value.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"tokens": [[1, 2, 3], [4], [5, 6, 7, 8]]}, folder)
        ...     rows = tfdist.data.pack(folder, "tokens", 4, whole=True, shuffle=False)
        ...     [(row["tokens"].tolist(), row["document"].tolist()) for row in rows]
        [([5, 6, 7, 8], [1, 1, 1, 1]), ([1, 2, 3, 4], [1, 1, 1, 2])]
    """
    view = view_of(source, "source")
    if view.mixture is not None:
        raise ConfigError("source is a mixture; pack its sources, and mix what was packed.", name="source")
    length = validation.integer("length", length, minimum=1)
    given = view.examples.schema.get(feature)
    if given is None or given.dtype == TEXT or len(given.shape) != 1:
        raise ConfigError(
            f"feature is {feature!r}, which is {given}; it must be a list of numbers. There are "
            f"{', '.join(map(repr, view.examples.schema))}.",
            name="feature",
            received=feature,
        )
    if feature in ("document", "position"):
        raise ConfigError(f"feature is {feature!r}, which rows have besides; give it another name.", name="feature")
    if np.dtype(given.dtype).kind in "iu":
        limits = np.iinfo(given.dtype)
        fill = validation.integer("fill", fill, minimum=int(limits.min), maximum=int(limits.max))
    ids = view.all_ids()
    if validation.boolean("shuffle", shuffle) and len(ids):
        ids = ids[Permutation(len(ids), "pack", validation.integer("seed", seed))(np.arange(len(ids)))]
    sizes = view.examples.lengths(feature)[ids]
    if not sizes.sum():
        raise ConfigError(f"feature {feature!r} has no value in {len(ids)} examples.", name="feature", received=feature)
    plan = _whole(sizes, length) if validation.boolean("whole", whole) else _cut(sizes, length)
    return View(Packed(view, feature, length, fill, ids, plan))


@dataclass(frozen=True)
class Plan:
    """Pieces of sequences, row by row: sequence, first value, number of values; `first` has each row's first piece."""

    sequence: _Ids
    begin: _Ids
    size: _Ids
    first: _Ids


def _cut(sizes: _Ids, length: int) -> Plan:
    """Return a plan of sequences one after the other, cut where a row ends."""
    ends = np.cumsum(sizes)
    total = int(ends[-1])
    bounds = np.unique(np.concatenate([ends, np.arange(0, total, length)]))
    bounds = bounds[bounds < total]
    sequence = np.searchsorted(ends, bounds, side="right")
    size = np.diff(np.append(bounds, total))
    first = np.searchsorted(bounds, np.append(np.arange(0, total, length), total))
    return Plan(sequence, bounds - (ends - sizes)[sequence], size, first)


def _whole(sizes: _Ids, length: int) -> Plan:
    """Return a plan of pieces of at most a row: the longest first, each in the row that it fills best."""
    counts = -(-sizes // length)
    sequence = np.repeat(np.arange(len(sizes)), counts)
    begin = (np.arange(len(sequence)) - np.repeat(np.cumsum(counts) - counts, counts)) * length
    size = np.minimum(sizes[sequence] - begin, length)
    row = np.empty(len(size), np.int64)
    rooms: list[int] = []  # the rooms that some row has left, sorted
    rows_with: dict[int, list[int]] = {}
    rows = 0
    order = np.argsort(-size, kind="stable")
    for piece, needed in zip(order.tolist(), size[order].tolist(), strict=True):
        place = bisect.bisect_left(rooms, needed)
        if place == len(rooms):
            room, row[piece], rows = length, rows, rows + 1
        else:
            room = rooms[place]
            row[piece] = rows_with[room].pop()
            if not rows_with[room]:
                del rooms[place], rows_with[room]
        left = room - needed
        if left:
            if left not in rows_with:
                bisect.insort(rooms, left)
                rows_with[left] = []
            rows_with[left].append(int(row[piece]))
    by_row = np.argsort(row, kind="stable")
    first = np.searchsorted(row[by_row], np.arange(rows + 1))
    return Plan(sequence[by_row], begin[by_row], size[by_row], first)


class _BoundTo(Binding):
    """A binding that checks the shards of the directory from which the rows are made."""

    def __init__(self, binding: Binding) -> None:
        self._of = binding

    @contextmanager
    def explained(self) -> Iterator[None]:
        with self._of.explained():
            yield

    def require(self, shards: Iterable[int]) -> None:
        self._of.require_manifest()

    def require_manifest(self, since: float = math.inf) -> None:
        self._of.require_manifest(since)


class Packed(Computed):
    """The rows of a plan, as examples."""

    def __init__(self, view: View, feature: str, length: int, fill: int, ids: _Ids, plan: Plan) -> None:
        self._examples, self._feature, self._length, self._fill = view.examples, feature, length, fill
        self._ids, self._plan = ids, plan
        crc = 0
        for part in (ids, plan.sequence, plan.begin, plan.size, plan.first):
            crc = google_crc32c.extend(crc, np.ascontiguousarray(part, "<i8").tobytes())
        source = Shard(
            file=f"{view.examples.manifest.digest}:{feature}:{length}:{fill}",
            examples=len(plan.first) - 1,
            bytes=view.examples.manifest.total_bytes,
            crc32c=crc,
            smallest=length,
            largest=length,
        )
        dtype = view.examples.schema[feature].dtype
        schema = Schema(
            {
                feature: Feature(dtype, (length,)),
                "document": Feature("int32", (length,)),
                "position": Feature("int32", (length,)),
            }
        )
        super().__init__(schema, [source], storage=view.examples.storage, binding=_BoundTo(view.examples.binding))

    @property
    def url(self) -> str:
        return self._examples.url

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        plan, shape = self._plan, (len(ids), self._length)
        first, after = plan.first[ids], plan.first[ids + 1]
        pieces = _ranges(first, after - first)  # of all rows, one after the other
        sizes, row = plan.size[pieces], np.repeat(np.arange(len(ids)), after - first)
        numbers = np.arange(len(pieces)) - np.repeat(np.cumsum(after - first) - (after - first), after - first)
        ends = np.cumsum(sizes)
        # the place of each value follows from the sizes of the earlier pieces of its row
        in_row = ends - sizes - np.repeat((ends - sizes)[np.cumsum(after - first) - (after - first)], after - first)
        places = _ranges(row * self._length + in_row, sizes)
        found: Columns = {}
        for name in names:
            values = np.full(shape, self._fill if name == self._feature else 0, self.schema[name].dtype)
            if name == self._feature:
                values.reshape(-1)[places] = self._values(pieces)
            elif name == "document":
                values.reshape(-1)[places] = np.repeat(numbers + 1, sizes)
            else:
                values.reshape(-1)[places] = _ranges(plan.begin[pieces], sizes)
            found[name] = values
        return found

    def _values(self, pieces: _Ids) -> NDArray[Any]:
        """Return the values of pieces, one after the other."""
        plan = self._plan
        wanted, which = np.unique(self._ids[plan.sequence[pieces]], return_inverse=True)
        lists = lists_of(self._examples, self._feature, wanted)
        spans = zip(which.tolist(), plan.begin[pieces].tolist(), plan.size[pieces].tolist(), strict=True)
        return np.concatenate([lists[at][begin : begin + size] for at, begin, size in spans])


def _ranges(begins: _Ids, sizes: _Ids) -> _Ids:
    """Return the numbers of several ranges, one after the other."""
    ends = np.cumsum(sizes)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(begins - (ends - sizes), sizes)


def lists_of(examples: Examples, name: str, ids: _Ids) -> list[NDArray[Any]]:
    """Return the lists of a feature in these examples, read without the other features."""
    if isinstance(examples, Computed):
        return [np.asarray(value) for value in examples.columns(ids, [name])[name]]
    if isinstance(examples, Joined):
        found: list[Any] = [None] * len(ids)
        for place, here in examples.by_part(ids):
            part = lists_of(examples.parts[place], name, ids[here] - examples.firsts[place])
            for at, value in zip(here.tolist(), part, strict=True):
                found[at] = value
        return found
    feature, payloads = examples.schema[name], list(payloads_of(examples, ids))
    together: list[NDArray[np.int64] | None] = [None] * len(payloads)
    if feature.dtype == feature.encoding == "int64" and feature.size is None:
        together = example.integer_lists(payloads, name)
    return [
        np.asarray(example.value(name, feature, example.parse(payload))) if values is None else values
        for payload, values in zip(payloads, together, strict=True)
    ]
