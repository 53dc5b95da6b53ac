"""Input of Keras' `fit`, `evaluate` and `predict`: global batches, cut into the replicas' slices.

Every worker reads the same dataset and takes its contiguous rows of each global batch, so N replicas train on the
batches of one device, in order, whatever N is. With `AutoShardPolicy.OFF` or `FILE` each worker reads a dataset of
its own; a step then takes one part in (number of workers) of each worker's batch, and workers that run out take part
with no examples until the last one is done. Of what `tfdist.data.read` returns, a worker reads its rows alone.
"""

import enum
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfdist.compat import tf_data, tf_strategies
from tfdist.data.reading import Reading
from tfdist.errors import DisagreementError
from tfdist.training import step
from tfdist.training.workers import Workers

_Policy = tf.data.experimental.AutoShardPolicy
# What these functions do to tensors is graph operations already, and AutoGraph takes tenths of a second to see that.
_as_it_is = tf.autograph.experimental.do_not_convert


class Layout:
    """How a step's input is laid out: a step is traced once for a layout, whatever the number of examples.

    Args:
        spec: a nest of specs per local replica, as a tuple; None stands for "no value".
    """

    def __init__(self, spec: tuple[Any, ...]) -> None:
        self.spec = spec
        self.signature = _specs(spec)
        self.key = repr(spec)

    def pack(self, tensors: Sequence[Any]) -> Any:
        """Return a nest of per-replica values from tensors in the order of `signature`."""
        return tf_strategies.per_replica(self.slices(tensors))

    @property
    def is_cut(self) -> bool:
        """Whether there are several slices, each of which may have another number of examples."""
        return len(self.spec) > 1

    def part_signature(self, *, relaxed: bool) -> list[tf.TypeSpec]:
        """Return the specs of one replica's data, without its number of examples.

        Args:
            relaxed: whether parts may have any number of examples.
        """
        _, data = self.spec[0]
        return [_of_any_rows(spec) for spec in _specs(data)] if relaxed else _specs(data)

    def part(self, tensors: Sequence[Any]) -> Any:
        """Return one replica's data from tensors in the order of `part_signature`."""
        _, data = self.spec[0]
        return _packed(data, tensors)

    def parts(self, tensors: Sequence[Any]) -> list[tuple[tf.Tensor, list[Any]]]:
        """Return each local replica's number of examples and its data, flat, from what `signature` describes."""
        return [(rows, list(flat((data,)))) for rows, data in self.slices(tensors)]

    def slices(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return a nest per local replica from tensors in the order of `signature`."""
        return tuple(_packed(self.spec, tensors))


def _specs(nest: Any) -> list[tf.TypeSpec]:
    return [leaf for leaf in tf.nest.flatten(nest) if isinstance(leaf, tf.TypeSpec)]


def _packed(nest: Any, tensors: Sequence[Any]) -> Any:
    """Return the nest with tensors in the place of its specs, in order."""
    given = iter(tensors)
    leaves = [next(given) if isinstance(leaf, tf.TypeSpec) else None for leaf in tf.nest.flatten(nest)]
    return tf.nest.pack_sequence_as(nest, leaves)


def flat(slices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the tensors of a step's input, without structure and without "no value"."""
    return tuple(leaf for leaf in tf.nest.flatten(slices, expand_composites=False) if leaf is not None)


def _of_any_rows(spec: tf.TypeSpec) -> tf.TypeSpec:
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


class Batch(NamedTuple):
    """What the replicas of this worker get in one step.

    Attributes:
        tensors: the slices of the local replicas, flat.
        rows: examples of all replicas, int32 scalar.
        layout: how to pack the tensors.
    """

    tensors: Sequence[Any]
    rows: tf.Tensor
    layout: Layout


class _Element(NamedTuple):
    """One step's input of this worker."""

    slices: tuple[Any, ...]  # per local replica: its number of examples, its nest; flat once they leave the pipeline
    rows: tf.Tensor  # of all replicas, or of this worker's where data is its own
    fingerprint: tf.Tensor  # of the first batch, else 0

    def flat(self) -> tuple[Any, ...]:
        """Return one tuple, which tf.data hands out several times faster than a nest."""
        return (self.fingerprint, self.rows, *flat(self.slices))

    @classmethod
    def of(cls, tensors: tuple[Any, ...]) -> "_Element":
        return cls(tensors[2:], tensors[1], tensors[0])


class Source(enum.Enum):
    """Whose data a worker reads."""

    SHARED = "shared"  # the same dataset on every worker
    OWN = "own"  # a dataset of its own


class Input:
    """A dataset, distributed for one call of `fit`, `evaluate` or `predict`; iterate to get an epoch's batches.

    Args:
        dataset: yields global batches.
        batches: how many, None if that is not known or they do not end.
        local_replicas: replicas of this worker.
        workers: the workers that take part.
        expect: told how many batches the next epoch has, where that is known when one ends.

    Attributes:
        layout: of every batch.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        batches: int | None,
        local_replicas: int,
        workers: Workers,
        expect: Callable[[int], None] = lambda _: None,
    ) -> None:
        policy = dataset.options().experimental_distribute.auto_shard_policy
        own = workers.count > 1 and policy in (_Policy.OFF, _Policy.FILE)
        self.source = Source.OWN if own else Source.SHARED
        if own and policy == _Policy.FILE:
            dataset = tf_data.shard_by_files(dataset, workers.count, workers.index)
        self.workers = workers
        self._expect = expect
        self.batches = _own_batches(batches, workers) if own else batches
        self._endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        self._reading = dataset if isinstance(dataset, Reading) else None
        if self._reading is not None:
            elements = _share(self._reading, local_replicas, workers)
            self.element_spec = _whole(elements.element_spec.slices[0][1], self._reading.rows)
        else:
            self.element_spec = tf_data.without_optionals(dataset.element_spec)
            elements = _slices(dataset, self.source, local_replicas, workers)
        self.layout = Layout(tf_data.without_nones(elements.element_spec.slices))
        self._dataset = elements.map(_as_it_is(_Element.flat)).prefetch(2)

    def __iter__(self) -> Iterator[Batch]:
        # The iterator is made here, not at the first batch: a seeded shuffle draws a new order for every iterator
        # that is made, and Keras makes some that it does not use.
        epoch = self._epoch(map(_Element.of, iter(self._dataset)))
        if self._reading is not None:
            epoch = _counted(epoch, self._reading, self._expect)
        return (Batch(element.slices, rows, self.layout) for element, rows in epoch)

    def _epoch(self, elements: Iterator[_Element]) -> Iterator[tuple[_Element, tf.Tensor]]:
        if self.workers.count == 1:
            return ((element, element.rows) for element in elements)
        if self.source is Source.SHARED:
            return _shared(elements, self.batches, self._endless, self.workers)
        return _own(elements, self.layout, self.workers)


def _share(reading: Reading, local_replicas: int, workers: Workers) -> tf.data.Dataset:
    """Return the dataset of this worker's elements, of which nothing else is read."""
    own = reading.share(workers.index * local_replicas, local_replicas, workers.count * local_replicas)
    return own.map(_as_it_is(lambda mark, rows, slices: _Element(slices, rows, mark)))


def _whole(spec: Any, rows: int | None) -> Any:
    """Return the spec of a batch of so many examples from that of a part of it."""

    def whole(leaf: Any) -> Any:
        return tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) if isinstance(leaf, tf.TensorSpec) else leaf

    return tf.nest.map_structure(whole, tf_data.without_nones(spec))


def _counted(
    epoch: Iterator[tuple[_Element, tf.Tensor]], reading: Reading, expect: Callable[[int], None]
) -> Iterator[tuple[_Element, tf.Tensor]]:
    """Yield the batches of an epoch, each of which is consumed at once."""
    reading.begin()
    for batch in epoch:
        if reading.handed_out():
            expect(reading.steps)  # an epoch that was resumed in its middle has fewer than the next
        yield batch


def _own_batches(batches: int | None, workers: Workers) -> int | None:
    """Return the steps until every worker's own data has ended, or None where one does not know how much it has."""
    seen = workers.gather([-1 if batches is None else batches])[:, 0]
    return None if (seen < 0).any() else int(seen.max()) * workers.count


def _slices(dataset: tf.data.Dataset, source: Source, local_replicas: int, workers: Workers) -> tf.data.Dataset:
    """Return the dataset of this worker's elements."""
    replicas = local_replicas * workers.count

    def cut(data: Any, first: int, parts: int) -> _Element:
        data = tf_data.none_for_optionals(data)
        slices = tuple(step.part_of(data, part, parts) for part in range(first, first + local_replicas))
        return _Element(slices, step.rows_of(data), tf.constant(0, tf.int64))

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
        parts = [element._replace(rows=tf.add_n([rows for rows, _ in element.slices])) for element in parts]
        elements = tf.data.Dataset.from_tensors(parts[0])
        for element in parts[1:]:
            elements = elements.concatenate(tf.data.Dataset.from_tensors(element))
        return elements

    numbered = dataset.enumerate()
    if source is Source.SHARED:
        numbered = numbered.map(_as_it_is(shared), num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    else:
        numbered = numbered.flat_map(_as_it_is(own))
    return numbered


def _shared(
    elements: Iterator[_Element], batches: int | None, endless: bool, workers: Workers
) -> Iterator[tuple[_Element, tf.Tensor]]:
    """Yield the batches of data that all workers read alike, and raise on all of them where it is not alike."""
    known = batches is not None or endless
    position = 0
    while True:
        element = next(elements, None)
        if not known or position in (0, batches - 1 if batches else 0):
            mark = 0 if element is None else int(element.fingerprint)
            rows = 0 if element is None else int(element.rows)
            seen = workers.gather([element is not None, mark, rows, -1 if batches is None else batches])
            _require_alike(seen.tolist(), position)
        if element is None:
            return
        yield element, element.rows
        position += 1


def _require_alike(seen: list[list[int]], position: int) -> None:
    """Raise if a worker's report (has a batch, fingerprint, rows, batches) differs from the chief's."""
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
                f"workers read different data: at step {position} of the epoch worker 0 has {say(seen[0][field])}, "
                f"{who}. Every worker must be given the same dataset (tfdist gives each its slice of every batch); "
                "seed every shuffle alike. If each worker is meant to read data of its own, pass a tf.data.Dataset "
                "whose options have experimental_distribute.auto_shard_policy = "
                "tf.data.experimental.AutoShardPolicy.OFF."
            )


def _own(elements: Iterator[_Element], layout: Layout, workers: Workers) -> Iterator[tuple[_Element, tf.Tensor]]:
    """Yield batches until every worker's own data has ended; who has none left repeats its last, without counting."""
    last = None
    while True:
        element = next(elements, None)
        seen = workers.gather([element is not None, 0 if element is None else int(element.rows)])
        if not seen[:, 0].any():
            return
        if element is None:
            slices = tf_data.one_row(layout.spec) if last is None else layout.slices(last.slices)
            slices = tuple((tf.zeros_like(rows), data) for rows, data in slices)
            element = _Element(flat(slices), tf.constant(0), tf.constant(0, tf.int64))
        last = element
        yield element, tf.constant(int(seen[:, 1].sum()), tf.int32)


def fingerprint(data: Any) -> tf.Tensor:
    """Return a 64-bit fingerprint of every value in a batch, int64 scalar."""
    digests = []
    for leaf in tf.nest.flatten(data, expand_composites=True):
        if leaf is None:
            continue
        if leaf.dtype == tf.string:
            digests.append(
                tf.strings.reduce_join(tf.strings.as_string(tf.strings.to_hash_bucket_fast(leaf, 2**62)), separator=",")
            )
        else:
            leaf = tf.cast(leaf, tf.uint8) if leaf.dtype == tf.bool else leaf
            digests.append(tf.io.serialize_tensor(leaf))
    return tf.strings.to_hash_bucket_fast(tf.strings.join(digests, separator=";"), 2**62)
