"""The input of a step and of an epoch: the layout of tensors, and the way in which workers go through batches together.

Workers that read the same data compare it where that costs nothing. Workers with data of their own exchange the number
of their examples at every batch.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import tensorflow as tf

from tfdist.cluster.shares import Shares
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import tf_data
from tfdist.compat.tensorflow.device_batches import Division
from tfdist.errors import DisagreementError
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock


class Layout:
    """The structure of a step's input. A step is traced once per layout, for any number of examples."""

    def __init__(self, spec: tuple[Any, ...]) -> None:
        self.spec = spec
        self.signature = _specs(spec)
        self.key = repr(spec)

    def division(self, host: Sequence[tf.TypeSpec]) -> Division | None:
        """Divide an element, which has the tensors of ``host`` before those of slices, between host and devices."""
        return Division.of(host, [_specs(slice_spec) for slice_spec in self.spec])

    @classmethod
    def of(cls, slices: tuple[Any, ...]) -> "Layout":
        def spec(leaf: Any) -> Any:
            return None if leaf is None else tf.type_spec_from_value(leaf)

        return cls(tf.nest.map_structure(spec, slices, expand_composites=False))

    def pack(self, tensors: Sequence[Any], of_replicas: Sequence[int]) -> Any:
        """Return per-replica values, given tensors in the order of `signature`."""
        slices = self.slices(tensors)
        return tf_strategies.per_replica(tuple(slices[index] for index in of_replicas))

    @property
    def is_cut(self) -> bool:
        return len(self.spec) > 1

    def part_signature(self, *, relaxed: bool) -> list[tf.TypeSpec]:
        """Return the specs of one replica's data, without its number of examples."""
        _, data = self.spec[0]
        return [of_any_rows(spec) for spec in _specs(data)] if relaxed else _specs(data)

    def part(self, tensors: Sequence[Any]) -> Any:
        """Return one replica's data, given tensors in the order of `part_signature`."""
        _, data = self.spec[0]
        return _packed(data, tensors)

    def parts(self, tensors: Sequence[Any]) -> list[tuple[tf.Tensor, list[Any]]]:
        """Return the number of examples and the flat data of each local replica."""
        return [(rows, list(flat((data,)))) for rows, data in self.slices(tensors)]

    def slices(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return a nest for each local replica, given tensors in the order of `signature`."""
        return tuple(_packed(self.spec, tensors))


def _specs(nest: Any) -> list[tf.TypeSpec]:
    return [leaf for leaf in tf.nest.flatten(nest) if isinstance(leaf, tf.TypeSpec)]


def _packed(nest: Any, tensors: Sequence[Any]) -> Any:
    given = iter(tensors)
    leaves = [next(given) if isinstance(leaf, tf.TypeSpec) else None for leaf in tf.nest.flatten(nest)]
    return tf.nest.pack_sequence_as(nest, leaves)


def flat(slices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the tensors of a step's input, without structure and without missing values."""
    return tuple(leaf for leaf in tf.nest.flatten(slices, expand_composites=False) if leaf is not None)


def of_any_rows(spec: Any) -> Any:
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec


class Batch(NamedTuple):
    """The input of this worker's replicas in one step: flat slices, and the number of examples on all replicas."""

    tensors: Sequence[Any]
    rows: tf.Tensor
    layout: Layout
    has_one_graph: bool = False  # whether the graph that takes other batches of the epoch also takes this one


class Element(NamedTuple):
    """One step's input of this worker."""

    slices: tuple[Any, ...]  # number of examples and nest of each local replica; flat after the input pipeline
    rows: tf.Tensor  # number of examples of all replicas, or of this worker's alone if it has data of its own
    fingerprint: tf.Tensor  # of the first batch; 0 for any other

    def flat(self) -> tuple[Any, ...]:
        """Return one tuple, which tf.data hands out several times faster than a nest."""
        return (self.fingerprint, self.rows, *flat(self.slices))

    @classmethod
    def of(cls, tensors: tuple[Any, ...]) -> "Element":
        return cls(tensors[2:], tensors[1], tensors[0])

    @staticmethod
    def numbers() -> list[tf.TypeSpec]:
        """Return the specs of the tensors that precede the slices."""
        return [tf.TensorSpec([], tf.int64), tf.TensorSpec([], tf.int32)]


class Place(NamedTuple):
    """A stand-in for the next batch of an epoch. `predict` takes the batch from the epoch itself."""

    epoch: "Epoch"


class Epoch:
    """The batches of one iteration over the input; iterate to take them one by one."""

    def __init__(
        self,
        elements: Any,
        layout: Layout,
        walk: "Alone | SharedData | OwnData",
        *,
        failure: Callable[[str], Exception | None],
        begin: Callable[["Epoch"], None],
        took: Callable[[], None],
        gives_places: bool = False,
        has_one_graph: bool = False,
    ) -> None:
        self.layout = layout
        self._has_one_graph = has_one_graph
        self._gives_places = gives_places
        self._elements = elements
        self._walk = walk
        self._failure = failure
        self._begin: Callable[[Epoch], None] | None = begin
        self._took = took
        #: The number of batches taken so far.
        self.position = 0
        self.has_ended = False

    def __iter__(self) -> "Epoch":
        return self

    def __next__(self) -> Batch | Place:
        batch = Place(self) if self._gives_places else self.take()
        if batch is None:
            raise StopIteration
        return batch

    def take(self) -> Batch | None:
        """Return the next batch; None if the epoch has ended."""
        if self.has_ended:
            return None
        # reports the wait for a batch to the agent
        with step_clock().during(Phase.INPUT):
            self._begin_once()
            tensors = next(self._elements, None)
            found = self._walk.next(None if tensors is None else Element.of(tensors), self.position)
            if found is None:
                self.has_ended = True
                return None
            self._count(1)
        element, rows = found
        return Batch(element.slices, rows, self.layout, self._has_one_graph)

    def free(self, wanted: int) -> int:
        """Return how many of the next batches a graph may take, at most ``wanted``."""
        return self._walk.free(self.position, wanted)

    def give(self, graph: Callable[[Any], int]) -> int:
        """Let a graph take batches; return how many it took."""
        if self.has_ended:
            return 0
        self._begin_once()
        with tf_data.raising(self._failure):
            count = graph(self._elements)
        self._count(count)
        return count

    def fail(self, error: tf.errors.OpError) -> NoReturn:
        """Raise the error of an element that a graph has requested, as iteration does."""
        with tf_data.raising(self._failure):
            raise error

    def renew(self, make: Callable[[], Any], *, seconds: float) -> None:
        """Take the remaining batches from a new iterator, if the epoch has begun and has not ended."""
        if self._begin is None and not self.has_ended:
            former, self._elements = self._elements, make()
            tf_data.end([former], seconds=seconds)

    def end(self, *, seconds: float) -> bool:
        """Release the input and prefetched batches; return whether that was done within ``seconds``."""
        self.has_ended = True
        return not tf_data.end([self._elements], seconds=seconds)

    def _begin_once(self) -> None:
        if self._begin is not None:
            self._begin(self)
            self._begin = None

    def _count(self, batches: int) -> None:
        self.position += batches
        for _ in range(batches):
            self._took()


class Alone:
    """The walk of a single worker. A walk is the way in which workers go through an epoch together."""

    def free(self, position: int, wanted: int) -> int:
        """Return how many batches from ``position`` on a graph may take without Python.

        All workers must get the same number, because their collectives meet only inside the same graph.
        """
        return wanted

    def next(self, element: Element | None, position: int) -> tuple[Element, tf.Tensor] | None:
        """Return the element to train on and the number of examples of all replicas; None if the epoch ends."""
        return None if element is None else (element, element.rows)


class SharedData:
    """The walk of workers that read the same data. If the data differs, all of them raise.

    They compare the first and the last batch, or every batch if the number of batches is unknown.
    """

    def __init__(self, workers: Workers, batches: int | None, *, endless: bool, shares: Callable[[], Shares]) -> None:
        self._workers = workers
        self._shares = shares
        self._batches = batches
        self._known = batches is not None or endless
        self._compared = (0, batches - 1 if batches else 0)

    def free(self, position: int, wanted: int) -> int:
        if not self._known:
            return 0
        return min([wanted, *(compared - position for compared in self._compared if compared >= position)])

    def next(self, element: Element | None, position: int) -> tuple[Element, tf.Tensor] | None:
        if not self._known or position in self._compared:
            mark = 0 if element is None else int(element.fingerprint)
            rows = 0 if element is None else int(element.rows)
            batches = -1 if self._batches is None else self._batches
            digest = hashlib.sha256(repr(self._shares().weights).encode()).digest()
            shares = int.from_bytes(digest[:7], "little")
            seen = self._workers.gather([element is not None, mark, rows, batches, shares])
            _require_alike(seen.tolist(), position)
        return None if element is None else (element, element.rows)


class OwnData:
    """The walk of workers that read data of their own. It ends when all of them have read theirs.

    A worker that has no more data repeats its last batch, which does not count.
    """

    def __init__(self, workers: Workers, layout: Layout) -> None:
        self._workers = workers
        self._layout = layout
        self._last: Element | None = None

    def free(self, position: int, wanted: int) -> int:
        return 0

    def next(self, element: Element | None, position: int) -> tuple[Element, tf.Tensor] | None:
        seen = self._workers.gather([element is not None, 0 if element is None else int(element.rows)])
        if not seen[:, 0].any():
            return None
        if element is None:
            last = self._last
            slices = tf_data.one_row(self._layout.spec) if last is None else self._layout.slices(last.slices)
            slices = tuple((tf.zeros_like(rows), data) for rows, data in slices)
            element = Element(flat(slices), tf.constant(0), tf.constant(0, tf.int64))
        self._last = element
        return element, tf.constant(int(seen[:, 1].sum()), tf.int32)


def _require_alike(seen: list[list[int]], position: int) -> None:
    """Raise if a worker's report (has a batch, fingerprint, rows, batches, shares) differs from the chief's."""
    unlike = [worker for worker, report in enumerate(seen) if report[4] != seen[0][4]]
    if unlike:
        raise DisagreementError(
            f"workers cut batches by different shares: worker 0 and {', '.join(map(str, unlike))}. Set strategy.shares "
            "alike on every worker.",
            name="shares",
            workers=(0, *unlike),
        )
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
                "draw and shuffle alike, as after keras.utils.set_random_seed(1) at the top of the script, and augment "
                "by tf.image.stateless_* or by layers of the model: with num_parallel_calls, tf.image.random_* draws "
                "in another order on each worker. If each worker is meant to read data of its own, pass a "
                "tf.data.Dataset whose options have experimental_distribute.auto_shard_policy = "
                "tf.data.experimental.AutoShardPolicy.OFF.",
                name="data",
                workers=(0, *others),
            )
