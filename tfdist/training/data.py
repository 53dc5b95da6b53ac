"""Input of Keras' `fit`, `evaluate` and `predict`: global batches, cut into the replicas' slices.

Every worker reads the same dataset and takes its contiguous rows of each global batch, so N replicas train on the batches
of one device, in order, whatever N is. With `AutoShardPolicy.OFF` or `FILE` each worker reads a dataset of its own; a step
then takes one part in (number of workers) of each worker's batch, and workers that run out take part with no examples
until the last one is done.
"""

import enum
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat import tf_data, tf_strategies
from tfdist.errors import DisagreementError
from tfdist.training import step
from tfdist.training.workers import Workers

_Policy = tf.data.experimental.AutoShardPolicy


class Batch(NamedTuple):
    """What the replicas of this worker get in one step.

    Attributes:
        data: nest of per-replica tensors.
        rows: examples of all replicas, int32 scalar.
    """

    data: Any
    rows: tf.Tensor


class _Element(NamedTuple):
    """One step's input of this worker, as it leaves the pipeline."""

    slices: tuple[Any, ...]  # one nest per local replica
    rows: tf.Tensor  # of the whole batch that was read
    fingerprint: tf.Tensor  # of the first batch, else 0


class Source(enum.Enum):
    """Whose data a worker reads."""

    SHARED = "shared"  # the same dataset on every worker
    OWN = "own"  # a dataset of its own


class Input:
    """A dataset, distributed for one call of `fit`, `evaluate` or `predict`; iterate to get an epoch's batches.

    Args:
        dataset: yields global batches.
        local_replicas: replicas of this worker.
        workers: the workers that take part.
    """

    def __init__(self, dataset: tf.data.Dataset, *, local_replicas: int, workers: Workers) -> None:
        policy = dataset.options().experimental_distribute.auto_shard_policy
        own = workers.count > 1 and policy in (_Policy.OFF, _Policy.FILE)
        self.source = Source.OWN if own else Source.SHARED
        if own and policy == _Policy.FILE:
            dataset = tf_data.shard_by_files(dataset, workers.count, workers.index)
        self.workers = workers
        self.element_spec = tf_data.without_optionals(dataset.element_spec)
        self.cardinality = int(dataset.cardinality())
        self._dataset = _slices(dataset, self.source, local_replicas, workers)

    def __iter__(self) -> Iterator[Batch]:
        elements = iter(self._dataset)
        if self.workers.count == 1:
            return map(_batch, elements)
        if self.source is Source.SHARED:
            return _shared(elements, self.cardinality, self.workers)
        return _own(elements, self._dataset.element_spec, self.workers)


def _slices(dataset: tf.data.Dataset, source: Source, local_replicas: int, workers: Workers) -> tf.data.Dataset:
    """Return the dataset of this worker's elements."""
    replicas = local_replicas * workers.count

    def cut(data: Any, first: int, parts: int) -> _Element:
        data = tf_data.none_for_optionals(data)
        rows = step.rows_of(data)
        slices = tuple(step.slice_rows(data, *step.bounds(rows, part, parts)) for part in range(first, first + local_replicas))
        return _Element(slices, rows, tf.constant(0, tf.int64))

    def shared(index: tf.Tensor, data: Any) -> _Element:
        element = cut(data, workers.index * local_replicas, replicas)
        if workers.count == 1:
            return element
        # The first batch tells whether workers read the same data; the others are not worth the time.
        first = tf.equal(index, 0)
        return element._replace(fingerprint=tf.cond(first, lambda: fingerprint(data), lambda: tf.constant(0, tf.int64)))

    def own(index: tf.Tensor, data: Any) -> tf.data.Dataset:
        del index
        parts = [cut(data, part * local_replicas, replicas) for part in range(workers.count)]
        rows = [p._replace(rows=sum(step.rows_of(s) for s in p.slices)) for p in parts]
        elements = tf.data.Dataset.from_tensors(rows[0])
        for row in rows[1:]:
            elements = elements.concatenate(tf.data.Dataset.from_tensors(row))
        return elements

    numbered = dataset.enumerate()
    if source is Source.SHARED:
        numbered = numbered.map(shared, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    else:
        numbered = numbered.flat_map(own)
    return numbered.prefetch(2)


def _batch(element: _Element, rows: tf.Tensor | None = None) -> Batch:
    return Batch(tf_strategies.per_replica(element.slices), element.rows if rows is None else rows)


def _shared(elements: Iterator[_Element], cardinality: int, workers: Workers) -> Iterator[Batch]:
    """Yield the batches of data that all workers read alike, and raise on all of them where it is not alike."""
    known = cardinality >= 0 or cardinality == tf.data.INFINITE_CARDINALITY
    position = 0
    while True:
        element = next(elements, None)
        if position == 0 or not known:
            mark = 0 if element is None else int(element.fingerprint)
            rows = 0 if element is None else int(element.rows)
            seen = workers.gather([element is not None, mark, rows, cardinality])
            _require_alike(seen.tolist(), position)
        if element is None:
            return
        yield _batch(element)
        position += 1


def _require_alike(seen: list[list[int]], position: int) -> None:
    """Raise if a worker's report (has a batch, fingerprint, rows, cardinality) differs from the chief's."""
    words: list[tuple[int, Callable[[int], str]]] = [
        (3, lambda n: f"{n} batches" if n >= 0 else "an unknown number of batches"),
        (0, lambda n: "a further batch" if n else "no further batch"),
        (2, lambda n: f"a batch of {n} examples"),
        (1, lambda n: f"a batch with fingerprint {n & (2**64 - 1):016x}"),
    ]
    for field, say in words:
        others = [w for w, report in enumerate(seen) if report[field] != seen[0][field]]
        if others:
            who = ", ".join(f"worker {w} has {say(seen[w][field])}" for w in others)
            raise DisagreementError(
                f"workers read different data: at step {position} of the epoch worker 0 has {say(seen[0][field])}, {who}. "
                "Every worker must be given the same dataset (tfdist gives each its slice of every batch); seed every "
                "shuffle alike. If each worker is meant to read data of its own, pass a tf.data.Dataset whose options have "
                "experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF."
            )


def _own(elements: Iterator[_Element], spec: Any, workers: Workers) -> Iterator[Batch]:
    """Yield batches until every worker's own data has ended; who has none left gets no rows."""
    while True:
        element = next(elements, None)
        seen = workers.gather([element is not None, 0 if element is None else int(element.rows)])
        if not seen[:, 0].any():
            return
        rows = tf.constant(int(seen[:, 1].sum()), tf.int32)
        yield _batch(tf_data.empty(spec) if element is None else element, rows)


def fingerprint(data: Any) -> tf.Tensor:
    """Return a 64-bit fingerprint of every value in a batch, int64 scalar."""
    digests = []
    for leaf in tf.nest.flatten(data, expand_composites=True):
        if leaf is None:
            continue
        if leaf.dtype == tf.string:
            digests.append(tf.strings.reduce_join(tf.strings.as_string(tf.strings.to_hash_bucket_fast(leaf, 2**62)), separator=","))
        else:
            leaf = tf.cast(leaf, tf.uint8) if leaf.dtype == tf.bool else leaf
            digests.append(tf.io.serialize_tensor(leaf))
    return tf.strings.to_hash_bucket_fast(tf.strings.join(digests, separator=";"), 2**62)
