"""The tf.data pipeline of an epoch: numbers of examples, their bytes, features, and what `fit` takes of them."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.data import features, order, sharding
from tfdist.data.ahead import Ahead
from tfdist.data.decoded import DecodedCache
from tfdist.data.examples import Examples
from tfdist.data.fetch import PAYLOAD, Fetcher, MappedBytes
from tfdist.data.layout import EXTENT, FIXED
from tfdist.data.position import Identity, Position

_PREFETCHED = 2  # batches
_MOST_AT_ONCE = 16

Features = dict[str, Any]


@dataclass(frozen=True)
class Share:
    """Whose part of every global batch is read: ``count`` of ``parts`` equal parts, from ``first`` on."""

    first: int
    count: int
    parts: int

    def pieces(self, rows: int) -> list[tuple[int, int, int]]:
        """Return for each part its number of examples and the rows to take: one, of a neighbour, where it has none."""
        found = []
        for index in range(self.first, self.first + self.count):
            begin, end = sharding.part(rows, index, self.parts)
            first = min(begin, max(rows - 1, 0))
            found.append((end - begin, first, max(end, first + 1)))
        return found

    def rows(self, rows: int) -> tuple[int, int]:
        """Return the first row of a batch that is read, and the one behind the last."""
        pieces = self.pieces(rows)
        return min(first for _, first, _ in pieces), max(end for _, _, end in pieces)


class Pipeline:
    """How examples become batches.

    Args:
        examples: the directory.
        fetcher: reads them.
        order: which stands where.
        seed: of the order and of augmentation.
        global_batch_size: examples of a batch over all replicas.
        tail: see `sharding.Batches`.
        decode: an example's features -> its features, the same each time.
        augment: (an example's features, seed) -> its features.
        cache: keeps what `decode` made.
        finish: features, weight -> what the dataset yields.
        native: the compiled ops, or None.
    """

    def __init__(
        self,
        *,
        examples: Examples,
        fetcher: Fetcher,
        order: order.Order,
        seed: int,
        global_batch_size: int,
        tail: str,
        decode: Callable[[Features], Features] | None,
        augment: Callable[[Features, tf.Tensor], Features] | None,
        cache: DecodedCache | None,
        finish: Callable[[Features, tf.Tensor | None], Any],
        weighs: bool,
        native: Any,
    ) -> None:
        self.examples = examples
        self.order = order
        self.seed = seed
        self.global_batch_size = global_batch_size
        self.tail = tail
        self.identity = Identity(examples.manifest.digest, order.name, seed, order.examples)
        self._ahead = Ahead(order, seed)
        self._fetcher = fetcher
        self._decode = decode
        self._augment = augment
        self._cache = cache
        self._finish = finish
        self._weighs = weighs
        self._ops: tuple[Any, list[str]] | None = None  # with the files that they read
        if native is not None and isinstance(fetcher.source, MappedBytes):
            self._ops = native, fetcher.source.paths

    def batches(self, start: int = 0) -> sharding.Batches:
        """Return the batches of an epoch of which ``start`` examples have been consumed."""
        return sharding.Batches(self.order.examples, self.global_batch_size, self.tail, start)

    def epochs(self, position: Position, share: Share | None) -> tf.data.Dataset:
        """Return a dataset of the epoch at ``position``, which is looked up when the first batch is asked for.

        Whole batches tell the position when the last one is handed out; who takes shares has to.

        Args:
            position: where reading stands.
            share: which part of each batch; None for whole ones.
        Returns:
            What ``finish`` returned for each batch; of shares (fingerprint, examples of the batch, pieces).
        """

        def begin(_: np.int64) -> tuple[np.int64, np.int64, np.int64, np.int64]:
            if share is None:
                position.begin(counted=False)
            steps = self.batches(position.start).steps
            return np.int64(position.epoch), np.int64(position.start), np.int64(steps), self._fingerprint(position)

        def end() -> np.bool_:
            position.is_last = True
            return np.bool_(True)

        @_as_it_is
        def steps_of_epoch(which: tf.Tensor) -> tf.data.Dataset:
            scalars = tuple(tf.numpy_function(begin, [which], (tf.int64,) * 4))
            for scalar in scalars:
                scalar.set_shape([])
            steps = tf.data.Dataset.range(scalars[2])
            return tf.data.Dataset.zip(steps, tf.data.Dataset.from_tensors(scalars).repeat())

        @_as_it_is
        def batch(step: tf.Tensor, scalars: tuple[tf.Tensor, ...]) -> Any:
            number, start, steps, mark = scalars
            data = self._batch(number, start, step, mark, share)
            return data if share is not None else (tf.equal(step, steps - 1), data)

        # Functions inside a flat_map are prepared anew in every epoch, in tenths of a second: numbers are inside alone.
        batches = tf.data.Dataset.range(1).flat_map(steps_of_epoch)
        batches = batches.map(batch, num_parallel_calls=_parallel_calls(), deterministic=True).prefetch(_PREFETCHED)
        if share is not None:
            return batches
        # behind the prefetching, so that it happens when the last batch is asked for
        return batches.map(lambda is_last, data: _after(is_last, end, data))

    def _fingerprint(self, position: Position) -> np.int64:
        text = repr((self.identity, position.epoch, position.start, self.global_batch_size, self.tail))
        return np.int64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little"))

    def _batch(self, epoch: tf.Tensor, start: tf.Tensor, step: tf.Tensor, mark: tf.Tensor, share: Share | None) -> Any:
        rows, ids, weight, seeds = self._numbers(epoch, start, step, share)
        found, sound = self._features(ids)
        if self._augment is not None:
            found = mapped(self._augment, found, seeds)
        weight = weight * sound
        if share is None and self.tail != "keep":
            found = {name: _sized(value, self.global_batch_size) for name, value in found.items()}
            weight.set_shape([self.global_batch_size])
        data = self._finish(found, weight if self._weighs else None)
        if share is None:
            return data
        fingerprint = tf.where(tf.equal(step, 0), mark, tf.zeros_like(mark))
        return fingerprint, tf.cast(rows, tf.int32), self._pieces(data, rows, share)

    def _pieces(self, data: Any, rows: tf.Tensor, share: Share) -> tuple[Any, ...]:
        spans = tf.numpy_function(
            lambda rows: np.array(_local(share.pieces(int(rows))), np.int32), [rows], tf.int32, stateful=False
        )
        spans.set_shape([share.count, 3])
        return tuple(
            (spans[piece, 0], tf.nest.map_structure(lambda v, p=piece: v[spans[p, 1] : spans[p, 2]], data))
            for piece in range(share.count)
        )

    def _numbers(
        self, epoch: tf.Tensor, start: tf.Tensor, step: tf.Tensor, share: Share | None
    ) -> tuple[tf.Tensor, ...]:
        def numbers(epoch: Any, start: Any, step: Any) -> tuple[Any, ...]:
            batches = self.batches(int(start))

            def bounds(step: int) -> tuple[int, int]:
                begin, end = batches.bounds(step)
                first, last = (0, end - begin) if share is None else share.rows(end - begin)
                return begin + first, begin + last

            begin, end = batches.bounds(int(step))
            ids = self._ahead.ids(
                epoch=int(epoch), step=int(step), steps=batches.steps, bounds=bounds, key=(int(start), share)
            )
            first, last = bounds(int(step))
            weight = (np.arange(first, last) < self.order.examples).astype(np.float32)
            seeds = order.seeds_of(ids, seed=self.seed, epoch=int(epoch)) if self._augment else _NO_SEEDS
            return np.int64(end - begin), ids, weight, seeds

        rows, ids, weight, seeds = tf.numpy_function(
            numbers, [epoch, start, step], (tf.int64, tf.int64, tf.float32, tf.int32), stateful=False
        )
        rows.set_shape([])
        ids.set_shape([None])
        weight.set_shape([None])
        seeds.set_shape([None, 2])
        return rows, ids, weight, seeds

    def _features(self, ids: tf.Tensor) -> tuple[Features, tf.Tensor]:
        """Return the features of examples, decoded, and 1 for each that is sound."""
        if self._cache is None:
            return self._decoded(ids)
        return self._cache.through(ids, self._decoded)

    def _decoded(self, ids: tf.Tensor) -> tuple[Features, tf.Tensor]:
        found, sound = self._read(ids)
        return (found if self._decode is None else mapped(self._decode, found)), sound

    def _read(self, ids: tf.Tensor) -> tuple[Features, tf.Tensor]:
        if self._ops is None:
            columns, sound = self._columns_by_numpy(ids)
            return self._from_columns(columns), sound
        columns, ok = self._by_ops(ids, *self._ops)
        carefully = lambda: tf.nest.flatten(self._columns_by_numpy(ids))  # noqa: E731
        at_once = lambda: tf.nest.flatten((columns, tf.ones_like(ids, tf.float32)))  # noqa: E731
        flat = tf.cond(tf.reduce_all(ok), at_once, carefully)
        columns, sound = tf.nest.pack_sequence_as((columns, ids), flat)
        return self._from_columns(columns), sound

    def _columns_by_numpy(self, ids: tf.Tensor) -> tuple[Features, tf.Tensor]:
        schema, names = self.examples.schema, self._fetcher.names
        dtypes = [tf.string if name == PAYLOAD else features.dtype_of(schema[name]) for name in names]

        def fetch(ids: Any) -> list[Any]:
            columns, weight = self._fetcher(ids)
            return [*(columns[name] for name in names), weight]

        *columns, weight = tf.numpy_function(fetch, [ids], [*dtypes, tf.float32], stateful=False)
        weight.set_shape([None])
        for name, column in zip(names, columns, strict=True):
            column.set_shape([None] if name == PAYLOAD else features.shape_of(schema[name]))
        return dict(zip(names, columns, strict=True)), weight

    def _from_columns(self, columns: Features) -> Features:
        if PAYLOAD in self._fetcher.names:
            columns = features.parsed(self.examples.schema, columns[PAYLOAD])
        return features.with_shapes(self.examples.schema, columns)

    def _by_ops(self, ids: tf.Tensor, ops: Any, paths: list[str]) -> tuple[Features, tf.Tensor]:
        """Return the columns as `_columns_by_numpy` does, and which examples are sound; every checksum is checked."""
        examples, fetcher, layout = self.examples, self._fetcher, self.examples.manifest.layout
        texts = [name for name in examples.schema if name not in fetcher.values] if layout == EXTENT else []
        dtypes = [features.dtype_of(examples.schema[name]) for name in fetcher.values]

        def place(ids: Any) -> list[Any]:
            extents = [part for name in texts for part in fetcher.extent(name, ids)]
            return [*examples.locate(ids), *extents, *fetcher.values_of(ids).values()]

        types = [tf.int32, tf.int64, tf.int64, *[tf.int64] * (2 * len(texts)), *dtypes]
        file, offset, length, *rest = tf.numpy_function(place, [ids], types, stateful=False)
        for vector in (file, offset, length, *rest[: 2 * len(texts)]):
            vector.set_shape([None])
        check = tf.fill(tf.shape(ids), fetcher.verify != "never")
        files = tf.constant(paths)
        if layout == FIXED:
            assert examples.template is not None
            rows, ok = ops.read_rows(files, file, offset, check, length=examples.template.length)
            return features.with_shapes(examples.schema, features.from_rows(examples.template, rows)), ok
        if layout != EXTENT:
            payload, ok = ops.read_records(files, file, offset, length, tf.zeros_like(length), length, check)
            return {PAYLOAD: payload}, ok
        columns: Features = dict(zip(fetcher.values, rest[2 * len(texts) :], strict=True))
        ok = tf.ones_like(check)
        for place_, name in enumerate(texts):
            start, size = rest[2 * place_ : 2 * place_ + 2]
            looks = check if not place_ else tf.zeros_like(check)
            columns[name], sound = ops.read_records(files, file, offset, length, start, size, looks)
            ok = tf.logical_and(ok, sound)
        return features.with_shapes(examples.schema, {name: columns[name] for name in fetcher.names}), ok


# Our own functions need no AutoGraph, and it would read their source; a user's get it, each as a tf.function.
_as_it_is = tf.autograph.experimental.do_not_convert
_NO_SEEDS = np.zeros((0, 2), np.int32)


def _local(pieces: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Return the pieces with rows counted from the first that is read."""
    first = pieces[0][1]
    return [(count, begin - first, end - first) for count, begin, end in pieces]


def mapped(function: Callable[..., Features], found: Features, *more: tf.Tensor) -> Features:
    """Return the features that a function makes of each example of a batch."""
    specs = [tf.nest.map_structure(_spec_of_one, given) for given in (found, *more)]
    graph: Any = tf.function(function)
    traced = graph.get_concrete_function(*specs)
    return tf.map_fn(lambda row: graph(*row), (found, *more), fn_output_signature=_signature(traced))


def _spec_of_one(value: Any) -> Any:
    if isinstance(value, tf.RaggedTensor):
        return tf.TensorSpec([None], value.dtype)
    return tf.TensorSpec(value.shape[1:], value.dtype)


def _signature(traced: Any) -> Any:
    def spec(out: Any) -> tf.TypeSpec:
        if out.shape.rank == 1 and out.shape[0] is None:  # a list of any length
            return tf.RaggedTensorSpec([None], out.dtype)
        return tf.TensorSpec(out.shape, out.dtype)

    return tf.nest.map_structure(spec, traced.structured_outputs)


def _sized(value: Any, rows: int) -> Any:
    if isinstance(value, tf.Tensor):
        value.set_shape([rows, *value.shape[1:]])
    return value


def _after(condition: tf.Tensor, call: Callable[[], np.bool_], data: Any) -> Any:
    """Return the data, after a call of Python where the condition holds."""
    done = tf.cond(condition, lambda: tf.numpy_function(call, [], tf.bool), lambda: tf.constant(False))
    with tf.control_dependencies([done]):
        return tf.nest.map_structure(tf.identity, data)


def _parallel_calls() -> int:
    return max(2, min(_MOST_AT_ONCE, len(os.sched_getaffinity(0))))


def fit_form(
    label: str | None, inputs: Sequence[str], weight: str | None
) -> Callable[[Mapping[str, Any], tf.Tensor | None], Any]:
    """Return what makes (x, y), (x, y, weight) or x of features.

    Args:
        label: the feature that is y; None for x alone.
        inputs: the features that are x, as a dict unless it is one; none: all others.
        weight: the feature that is the weight, if there is one.
    """

    def form(found: Mapping[str, Any], padding: tf.Tensor | None) -> Any:
        names = list(inputs) or [name for name in found if name not in (label, weight)]
        x = found[names[0]] if len(names) == 1 else {name: found[name] for name in names}
        if label is None:
            return x
        weights = None if weight is None else tf.cast(found[weight], tf.float32)
        if padding is not None:
            weights = padding if weights is None else weights * padding
        return (x, found[label]) if weights is None else (x, found[label], weights)

    return form
