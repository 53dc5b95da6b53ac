"""The collective of a strategy's step: keys, labels that are equal on every worker, buckets, and rows of tables.

The key of a reduction in a function follows from all that the function has reduced before. So operations of workers
that run different functions never match. Eagerly all have one key, and the backend reports workers that reduce
different things at once.
"""

import functools
import hashlib
import itertools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.collectives import wire_dtypes
from tfdist.collectives.collective import Collective
from tfdist.monitor.recording import graph_stamps
from tfdist.planner.bucket_filling import filled

#: the key of all that is reduced outside of functions
EAGER = "eager"

# What the collectives of Horovod and of TensorFlow reduce alike.
_REDUCED_BY_ALL = (tf.float16, tf.float32, tf.float64, tf.int32, tf.int64)

# A table of embeddings up to this size is summed whole, with the dense gradients; for a larger one members ask each
# other first how many rows they have.
_SMALL_TABLE_BYTES = 1 << 20

_of_graph: "weakref.WeakKeyDictionary[Any, dict[int, Signature]]" = weakref.WeakKeyDictionary()


class Signature:
    """The collectives of one traced function so far, and a digest of them, which names the next one.

    Workers that have traced the same up to here have equal names; those whose functions differ never match.
    """

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, entry: str) -> str:
        """Append a collective; return the digest of all entries including it, 16 hexadecimal digits."""
        self.entries.append(entry)
        self._hash.update(entry.encode() + b"\n")
        return self._hash.hexdigest()

    @property
    def digest(self) -> int:
        """A digest of 64 bits that are equal for equal entries, as a signed integer."""
        return int.from_bytes(self._hash.digest(), "little", signed=True)


def first_difference(mine: list[str], theirs: list[str]) -> tuple[int, str, str]:
    """Return the first index at which two lists differ, and both entries there ("nothing more" after an end)."""
    pad = "nothing more"
    pairs = list(itertools.zip_longest(mine, theirs, fillvalue=pad))
    different = ((index, a, b) for index, (a, b) in enumerate(pairs) if a != b)
    return next(different, (len(pairs), pad, pad))


def current_signature(replica: int = 0) -> Signature | None:
    """Return the signature of the function that is being traced, its conditions and loops included; None eagerly."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return _of_graph.setdefault(graph, {}).setdefault(replica, Signature())


def next_key(entries: Sequence[str], replica: int = 0) -> str:
    """Return the key of the operation that reduces these entries, and add them to the function's signature."""
    traced = current_signature(replica)
    return EAGER if traced is None else [traced.add(entry) for entry in entries][-1]


def described(kind: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None) -> str:
    """Describe an operation on a tensor, for signatures and messages."""
    shape = tensor.shape if shape is None else shape
    return " ".join(filter(None, [kind, tensor.dtype.name, str(shape), label]))


def relative_paths(paths: Sequence[str]) -> list[str]:
    """Return the paths of a model's variables, with Keras' counters starting at the lowest in the model.

    Keras numbers unnamed objects per process. The numbers differ between workers if one of them has built another model
    before.

    Example:
        >>> relative_paths(["sequential_3/dense_7/kernel", "sequential_3/dense_8/kernel"])
        ['sequential/dense/kernel', 'sequential/dense_1/kernel']
    """
    split = [[_counted(part) for part in path.split("/")] for path in paths]
    lowest: dict[str, int] = {}
    for stem, number in itertools.chain.from_iterable(split):
        lowest[stem] = min(number, lowest.get(stem, number))

    def name(stem: str, number: int) -> str:
        return stem if number == lowest[stem] else f"{stem}_{number - lowest[stem]}"

    return ["/".join(name(*part) for part in parts) for parts in split]


def _counted(part: str) -> tuple[str, int]:
    stem, _, digits = part.rpartition("_")
    return (stem, int(digits)) if stem and digits.isdecimal() else (part, 0)


def in_buckets(tensors: Mapping[int, tf.Tensor], bucket_bytes: int) -> list[list[int]]:
    """Return buckets of indices, each of one dtype, in the order of the mapping; a bucket is one message.

    Example:
        >>> in_buckets({3: tf.zeros([4]), 2: tf.zeros([2]), 1: tf.zeros([1], tf.int32), 0: tf.zeros([2])}, 16)
        [[3], [2, 0], [1]]
    """
    kinds = {i: (one.dtype, (one.shape.num_elements() or 1) * one.dtype.size) for i, one in tensors.items()}
    return filled(kinds, bucket_bytes)


class TracedCollective:
    """The operations of a collective under keys that follow from the function that is being traced."""

    def __init__(
        self, collective: Collective, *, bucket_bytes: int, replica: int = 0, names_shapes: bool = True
    ) -> None:
        self.collective = collective
        self.size = collective.size
        self.rank = collective.rank
        self.bucket_bytes = bucket_bytes
        self._replica = replica
        self._names_shapes = names_shapes

    def all_reduce(
        self, values: Sequence[Any], labels: Sequence[str] = (), *, keep_duplicate_indices: bool = True
    ) -> list[Any]:
        """Return the sums over members, in the order given; a bucket waits for its own tensors only."""
        if self.size == 1:
            return list(values)
        names = list(labels) or [""] * len(values)
        results: list[Any] = [None] * len(values)
        dense: dict[int, tf.Tensor] = {}
        for index, value in enumerate(values):
            value = self.carried(value, keep_duplicate_indices=keep_duplicate_indices)
            if isinstance(value, tf.IndexedSlices):
                results[index] = self._sum_of_slices(value, names[index], keep_duplicate_indices)
            else:
                dense[index] = value
        for bucket in in_buckets(dense, self.bucket_bytes):
            key = self._key(*[self._described("sum", dense[index], names[index]) for index in bucket])
            tensors = [dense[index] for index in bucket]
            totals = graph_stamps.reduction(tensors, functools.partial(self.collective.all_reduce, tensors, key=key))
            for index, total in zip(bucket, totals, strict=True):
                results[index] = total
        return results

    def carried(self, value: Any, *, keep_duplicate_indices: bool) -> Any:
        """Return a value as `all_reduce` carries it: a small table's rows as the whole table, unless rows matter."""
        is_rows = isinstance(value, tf.IndexedSlices) and (keep_duplicate_indices or not _is_small_table(value))
        return value if is_rows else tf.convert_to_tensor(value)

    def all_gather(self, tensor: tf.Tensor, label: str = "", *, equal_rows: bool = False) -> tf.Tensor:
        """Return the rows of all members in the members' order; only the numbers of rows may differ."""
        shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
        return self._moved("all_gather", tensor, label, shape, equal_rows=equal_rows)

    def reduce_scatter(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return this member's part of the sum of the rows, see `Collective.reduce_scatter`."""
        return self._moved("reduce_scatter", tensor, label)

    def all_to_all(self, tensor: tf.Tensor, label: str = "") -> tf.Tensor:
        """Return this member's part of every member's rows, see `Collective.all_to_all`."""
        return self._moved("all_to_all", tensor, label)

    def broadcast(self, tensor: tf.Tensor, label: str = "", *, root: int = 0) -> tf.Tensor:
        """Return one member's value, bit for bit."""
        return self._moved("broadcast", tensor, label, root=root)

    def in_common_dtype(self, tensor: tf.Tensor) -> tuple[tf.Tensor, wire_dtypes.Restore]:
        """Return the tensor in a dtype that all backends sum, and a function that converts the result back."""
        return wire_dtypes.for_op(tensor, _REDUCED_BY_ALL)

    def _moved(
        self, operation: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None, **options: int
    ) -> tf.Tensor:
        if self.size == 1:
            return tensor
        key = self._key(self._described(operation, tensor, label, shape))
        return getattr(self.collective, operation)(tensor, key=key, **options)

    def _described(self, kind: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None) -> str:
        return described(kind, tensor, label, shape if self._names_shapes else tf.TensorShape(None))

    def _key(self, *entries: str) -> str:
        return next_key(entries, self._replica)

    def _sum_of_slices(self, slices: tf.IndexedSlices, label: str, keep_duplicate_indices: bool) -> tf.IndexedSlices:
        def gathered() -> tuple[tf.Tensor, tf.Tensor]:
            return (
                self.all_gather(slices.values, f"{label} values"),
                self.all_gather(slices.indices, f"{label} indices"),
            )

        def whole() -> tuple[tf.Tensor, tf.Tensor]:
            height = tf.cast(slices.dense_shape[0], slices.indices.dtype)
            table = tf.math.unsorted_segment_sum(slices.values, slices.indices, height)
            (total,) = self.all_reduce([table], [label])
            return total, tf.range(height)

        if keep_duplicate_indices or slices.dense_shape is None:
            return tf.IndexedSlices(*gathered(), slices.dense_shape)
        # Every member has to take the same way, so they add up how many rows they have: known in the forward pass.
        (rows,) = self.all_reduce([tf.cast(tf.size(slices.indices), tf.int64)], [f"{label} number of rows"])
        # From the shape: a worker without a row must come to the same.
        row_bytes = tf.reduce_prod(tf.shape(slices.values, tf.int64)[1:]) * slices.values.dtype.size
        # A gather moves every member's rows to every other; a ring moves a table about twice.
        height = tf.cast(slices.dense_shape[0], tf.int64)
        cheaper = rows * (row_bytes + slices.indices.dtype.size) < 2 * height * row_bytes
        values, indices = tf.cond(cheaper, gathered, whole)
        return tf.IndexedSlices(values, indices, slices.dense_shape)


def _is_small_table(slices: tf.IndexedSlices) -> bool:
    shape = None if slices.dense_shape is None else tf.get_static_value(slices.dense_shape)
    return shape is not None and int(shape.prod()) * slices.values.dtype.size <= _SMALL_TABLE_BYTES


def traced_of(collectives: Sequence[Collective], bucket_bytes: int, *, of_rows: bool = False) -> list[TracedCollective]:
    """Return the collectives by which a step reduces, one for each replica of this process.

    Collectives for rows of tables have keys of their own, because a replica may use the ordinary ones more often.
    """
    return [
        TracedCollective(one, bucket_bytes=bucket_bytes, replica=-1 - replica if of_rows else replica)
        for replica, one in enumerate(collectives)
    ]
