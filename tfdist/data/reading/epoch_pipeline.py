"""The tf.data pipeline of an epoch: numbers of examples, their bytes, features, and what `fit` takes of them."""

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist.cluster.shares import Share
from tfdist.data.order import batch_parts, epoch_orders
from tfdist.data.order.batch_numbers import WHOLE, BatchChunks
from tfdist.data.order.reading_position import Identity, Position
from tfdist.data.reading import feature_tensors, malloc_tuning, tensor_columns, undecodable
from tfdist.data.reading.example_cache import DecodedCache
from tfdist.data.reading.examples import Examples
from tfdist.data.reading.fetch import PAYLOAD, Fetcher, MappedBytes
from tfdist.data.reading.per_example import mapped

_PREFETCHED = 2  # batches
_MOST_AT_ONCE = 16
_EARLY = 2  # chunks of batches that are prepared at once

Features = dict[str, Any]


class Pipeline:
    """How examples become batches."""

    def __init__(
        self,
        *,
        examples: Examples,
        fetcher: Fetcher,
        order: epoch_orders.Order,
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
        self.failures = fetcher.failures
        self.order = order
        self.seed = seed
        self.global_batch_size = global_batch_size
        self.tail = tail
        self.calls_users = decode is not None or augment is not None or cache is not None
        self.identity = Identity(examples.manifest.digest, order.name, seed, order.examples)
        self._decode = decode
        self._augment = augment
        self._cache = cache
        self._search = undecodable.Search(fetcher, decode, augment, skip=fetcher.skip)
        # what is cut out of a record as it stands can always be had
        self._may_fail = decode is not None or augment is not None or PAYLOAD in fetcher.names
        self._asked = tensor_columns.WhenAsked(fetcher)
        self._finish = finish
        self._weighs = weighs
        malloc_tuning.keep()
        if cache is not None:
            self._reader: tensor_columns.ColumnReader = tensor_columns.WhenAsked(fetcher)
        elif native is not None and isinstance(fetcher.source, MappedBytes):
            self._reader = tensor_columns.ByOps(fetcher, native, fetcher.source.paths)
        else:
            self._reader = tensor_columns.ByNumpy(fetcher)
            if self._reader.examples < 2 * global_batch_size:  # to cut up one batch would be a copy for nothing
                self._reader = tensor_columns.WhenAsked(fetcher)

    def batches(self, start: int = 0) -> batch_parts.Batches:
        """Return the batches of an epoch of which ``start`` examples have been consumed."""
        return batch_parts.Batches(self.order.examples, self.global_batch_size, self.tail, start)

    def epochs(self, position: Position, share: Share | None) -> tf.data.Dataset:
        """Return a dataset of the epoch at ``position``, which is looked up when the first batch is asked for.

        Whole batches tell the position when the last one is handed out; who takes shares has to.
        """
        chunks = BatchChunks(self.order, self.seed, self.batches, share or WHOLE, examples=self._reader.examples)

        def begin() -> np.ndarray[Any, Any]:
            self.examples.binding.require_manifest()
            if share is None:
                position.begin(counted=False)
            epoch, start = position.epoch, position.start
            same = epoch, start, self.batches(start).steps, self._fingerprint(position)
            return np.array([(number, *same) for number in range(chunks.count(start))], np.int64).reshape(-1, 5)

        def end() -> np.bool_:
            position.is_last = True
            return np.bool_(True)

        @_as_it_is
        def stretches_of_epoch(_: tf.Tensor) -> tf.data.Dataset:
            (rows,) = _shaped([tf.numpy_function(self.failures.noted(begin), [], tf.int64)], [[None, 5]])
            return tf.data.Dataset.from_tensor_slices(rows)

        @_as_it_is
        def early(row: tf.Tensor) -> Any:
            number, epoch, start, steps, mark = tf.unstack(row)
            found = self._early(chunks, epoch, start, number)
            batches = tf.shape(found["step"])
            return {**found, "steps": tf.fill(batches, steps), "mark": tf.fill(batches, mark)}

        @_as_it_is
        def late(found: dict[str, Any]) -> Any:
            data = self._late(found, share)
            return data if share is not None else (tf.equal(found["step"], found["steps"] - 1), data)

        # Functions inside a flat_map are prepared anew in every epoch, in hundredths of a second: there is none.
        batches = tf.data.Dataset.range(1).flat_map(stretches_of_epoch)
        batches = batches.map(early, num_parallel_calls=_EARLY, deterministic=True).prefetch(1).unbatch()
        batches = batches.map(late, num_parallel_calls=_parallel_calls(), deterministic=True).prefetch(_PREFETCHED)
        if share is not None:
            return batches
        # behind the prefetching, so that it happens when the last batch is asked for
        return batches.map(_as_it_is(lambda is_last, data: _after(is_last, end, data)))

    def _fingerprint(self, position: Position) -> np.int64:
        text = repr((self.identity, position.epoch, position.start, self.global_batch_size, self.tail))
        return np.int64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little"))

    def _early(self, chunks: BatchChunks, epoch: tf.Tensor, start: tf.Tensor, number: tf.Tensor) -> dict[str, Any]:
        """Return what is prepared of several batches at once, batches first."""

        def prepared(epoch: Any, start: Any, number: Any) -> list[Any]:
            found = chunks(epoch=int(epoch), start=int(start), number=int(number))
            numbers = [found.steps, found.rows, found.slices, found.ids, found.weights]
            seeds = [epoch_orders.seeds_of(found.ids, seed=self.seed, epoch=int(epoch))] if self._augment else []
            return [*numbers, *seeds, *tensor_columns.arrays_of(self._reader, found.ids)]

        per_example: list[tensor_columns.Spec] = [(tf.int64, []), (tf.float32, [])]
        per_example += [(tf.int32, [2])] if self._augment else []
        per_example += self._reader.specs
        specs: list[tensor_columns.Spec] = [(tf.int64, [None]), (tf.int64, [None]), (tf.int32, [None, None, 3])]
        specs += [(dtype, [None, None, *shape]) for dtype, shape in per_example]
        prepare = self.failures.noted(prepared)
        values = tf.numpy_function(prepare, [epoch, start, number], [dtype for dtype, _ in specs], stateful=False)
        step, rows, slices, ids, weights, *rest = _shaped(values, [shape for _, shape in specs])
        examples: dict[str, Any] = {"ids": ids, "weight": weights}
        if self._augment:
            examples["seeds"] = rest.pop(0)
        examples["columns"] = tuple(rest)
        return {"step": step, "rows": rows, "slices": slices, "examples": examples}

    def _late(self, batch: dict[str, Any], share: Share | None) -> Any:
        """Return a batch, or a share of it, from what was prepared."""
        examples = batch["examples"]
        ids, early = examples["ids"], examples["columns"]
        seeds = examples.get("seeds", tf.zeros([tf.size(ids), 2], tf.int32))
        if self._may_fail:
            found, sound = undecodable.either(self._made, self._made_without, (ids, seeds, early))
        else:
            found, sound = self._made(ids, seeds, early)
        weight = examples["weight"] * sound
        if share is None and self.tail != "keep":
            found = tf.nest.map_structure(lambda value: _sized(value, self.global_batch_size), found)
            weight.set_shape([self.global_batch_size])
        data = self._finish(found, weight if self._weighs else None)
        if share is None:
            return data
        mark = tf.where(tf.equal(batch["step"], 0), batch["mark"], tf.zeros_like(batch["mark"]))
        return mark, tf.cast(batch["rows"], tf.int32), _cut(data, batch["slices"], share.count)

    def _made(self, ids: tf.Tensor, seeds: tf.Tensor, early: Sequence[tf.Tensor]) -> tuple[Features, tf.Tensor]:
        """Return the features of a batch, and float32 1 for each example that is sound."""
        return self._made_by(self._reader, ids, seeds, early)

    def _made_without(self, ids: tf.Tensor, seeds: tf.Tensor, _: Any) -> tuple[Features, tf.Tensor]:
        """Return the same without examples that cannot be decoded."""
        ids, seeds, can = self._search(ids, seeds)
        found, sound = self._made_by(self._asked, ids, seeds, [])
        return found, sound * can

    def _made_by(
        self, reader: tensor_columns.ColumnReader, ids: tf.Tensor, seeds: tf.Tensor, early: Sequence[tf.Tensor]
    ) -> tuple[Features, tf.Tensor]:
        if self._cache is None:
            found, sound = self._decoded(reader, ids, list(early))
        else:
            found, sound = self._cache.through(ids, lambda ids: self._decoded(reader, ids, []))
        return (found if self._augment is None else mapped("augment", self._augment, found, seeds)), sound

    def _decoded(
        self, reader: tensor_columns.ColumnReader, ids: tf.Tensor, early: list[tf.Tensor]
    ) -> tuple[Features, tf.Tensor]:
        found, sound = reader.late(ids, early)
        found = feature_tensors.with_shapes(self.examples.schema, found)
        return (found if self._decode is None else mapped("decode", self._decode, found)), sound


# Our own functions need no AutoGraph, and it would read their source; a user's get it, each as a tf.function.
_as_it_is = tf.autograph.experimental.do_not_convert


def _shaped(values: Sequence[tf.Tensor], shapes: Sequence[list[int | None]]) -> Sequence[tf.Tensor]:
    for value, shape in zip(values, shapes, strict=True):
        value.set_shape(shape)
    return values


def _cut(data: Any, slices: tf.Tensor, count: int) -> tuple[Any, ...]:
    """Return each part's number of examples and its rows."""
    return tuple(
        (slices[place, 0], tf.nest.map_structure(lambda v, p=place: v[slices[p, 1] : slices[p, 2]], data))
        for place in range(count)
    )


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
