"""Meetings of workers: the exchange between two steps, and its effect on each worker's weights."""

import functools
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.collective import Collective
from tfdist.collectives.traced import TracedCollective, relative_paths
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.gradients.outer import worker_weights
from tfdist.gradients.outer.meeting_schedules import Event, Synchronization, inside
from tfdist.validation import counted


@dataclass(frozen=True)
class Island:
    """Workers that have the same weights, because they reduce in every step; the first of them speaks for all.

    Attributes:
        near: the collective of the workers of this island.
        heads: the collective of the first workers of all islands; None on the others.
        count: the number of islands.
    """

    near: TracedCollective
    heads: TracedCollective | None
    count: int

    def told(self, results: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        """Return the first worker's tensors; the others pass tensors of the same shapes, whose values do not count."""
        own = results if self.heads is not None else [tf.zeros_like(one) for one in results]
        return self.near.all_reduce(own, labels)


def by_heads(workers: Workers, near: Collective, bucket_bytes: int) -> Island:
    heads = workers.collective.among(range(0, workers.count, near.size))
    return Island(
        near=TracedCollective(near, bucket_bytes=bucket_bytes, replica=1),  # keys do not follow from what heads reduce
        heads=None if heads is None else TracedCollective(heads, bucket_bytes=bucket_bytes),
        count=workers.count // near.size,
    )


def island_of(schedule: Synchronization, workers: Workers, replicas: int) -> Collective | None:
    """Return the collective of the workers that reduce in every step with this one; None where it trains by itself."""
    size = inside(schedule)
    if size == 1 or workers.count == 1:
        return None
    if workers.count % size or replicas > 1:
        raise ConfigError(
            f"inside is {size}, and there are {workers.count} workers with {counted(replicas, 'replica')} each; "
            "groups of workers must be equally large, and their workers must have one replica. Let inside divide the "
            "number of workers, or let each worker have all devices of its host, and leave inside out.",
            name="inside",
            received=size,
        )
    groups = [range(first, first + size) for first in range(0, workers.count, size)]
    try:
        return next(filter(None, [workers.collective.among(group) for group in groups]))
    except UnsupportedError as error:  # the backend cannot form groups
        raise UnsupportedError(
            f"inside is {size}: {error} MultiWorkerMirroredStrategy has them; else leave inside out.",
            name="inside",
            received=size,
        ) from error


@dataclass(frozen=True)
class Group:
    """The workers that meet: their collective, this worker's fraction of a batch, and its island."""

    traced: TracedCollective
    share: float
    island: Island | None = None

    @property
    def size(self) -> int:
        """The number of workers or islands that have weights of their own."""
        return self.traced.size if self.island is None else self.island.count

    def exchanged(
        self,
        values: Sequence[tf.Tensor],
        labels: Sequence[str],
        exchange: Callable[[TracedCollective, list[tf.Tensor]], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        """Return on all workers the result of an exchange of their values times their shares, in the same shapes."""
        island = self.island
        share = self.share if island is None else 1 / island.count
        mine = [value * tf.constant(share, value.dtype) for value in values]  # `tf.cast` would round it to float32
        if island is None:
            return exchange(self.traced, mine)
        return island.told(mine if island.heads is None else exchange(island.heads, mine), labels)

    def mean(self, values: Sequence[tf.Tensor], labels: Sequence[str]) -> list[tf.Tensor]:
        """Return the means over workers, weighted by their shares."""
        return self.exchanged(values, labels, lambda carrier, mine: carrier.all_reduce(mine, labels))


class Load(NamedTuple):
    """The cost of a meeting for a worker.

    Attributes:
        wire_bytes: the bytes that it sends.
        codec_seconds: the time in which it encodes and decodes them; the same on all workers.
        stepping_seconds: the time in which it does nothing else: it reads its weights, and applies what has arrived.
    """

    wire_bytes: float
    codec_seconds: float = 0.0
    stepping_seconds: float = 0.0


def median_seconds(function: Callable[[], None]) -> float:
    """Return the median time of three calls, after one that is not timed."""
    taken = []
    for _ in range(4):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[1:])


class Meeting:
    """The base of meetings: workers may take the mean of their values. Methods run outside of every strategy.

    A meeting with a memory makes `keras.Variable`s once, and declares them with their rules.
    """

    #: whether `known` returns what workers agreed on
    remembers = False

    def __init__(self, schedule: Synchronization, group: Group, model: keras.Model) -> None:
        self._group = group
        self._model = model
        self._functions: dict[str, Callable[[], Any]] = {}

    def make(self) -> None:
        """Make the memory; called when the weights exist, which are equal on all workers."""

    def begin(self) -> None:
        """Begin again from the model's weights, which are equal on all workers."""

    def memory(self) -> list[ShardedState]:
        """Return the state that is remembered from meeting to meeting, also before it exists."""
        return []

    def perform(self, event: Event) -> None:
        """Carry out an event; all workers do so at the same step."""
        raise NotImplementedError

    def settle(self) -> None:
        """Wait for exchanges that are under way, so that the memory is whole."""

    def known(self) -> list[tf.Tensor] | None:
        """Return the weights on which all workers agree, if they are remembered."""
        return None

    def mean(self) -> list[tf.Tensor]:
        """Return the mean over workers of weights and states; nothing changes."""
        variables = [*worker_weights.weights_of(self._model), *worker_weights.states_of(self._model)]
        return self._traced("mean", functools.partial(self._mean_of, variables))

    def agree(self) -> None:
        """Let all workers have the mean of their weights and states."""
        variables = [*worker_weights.weights_of(self._model), *worker_weights.states_of(self._model)]
        worker_weights.write(variables, Meeting.mean(self))

    def means_of(self, slots: Sequence[keras.Variable]) -> list[tf.Tensor]:
        """Return the means over workers of optimizers' variables; nothing changes."""
        if not slots:
            return []
        name = f"slots {[id(one) for one in slots]}"  # which are others if the model is compiled again
        return list(self._traced(name, functools.partial(self._mean_of, [], slots)))

    def total(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums over workers."""
        labels = [f"total {number}" for number in range(len(values))]
        return self._traced("total", lambda *given: self._group.traced.all_reduce(given, labels), *values)

    def load(self) -> Load:
        """Return the cost of the largest meeting; all workers call this, and get the same bytes."""
        exchanged = self.exchanged()
        return Load(self._all_reduced_bytes(exchanged), stepping_seconds=self._write_seconds(exchanged))

    def _write_seconds(self, variables: Sequence[keras.Variable]) -> float:
        """Return the seconds in which numbers are read, multiplied by a share, and written; nothing changes."""

        def write() -> None:
            worker_weights.write(
                variables, [value * tf.ones([], value.dtype) for value in worker_weights.read(variables)]
            )

        return median_seconds(write)

    def wait_for_step(self) -> None:
        """Return when the step that was started last has ended, also on a GPU."""
        weights = worker_weights.weights_of(self._model)
        if weights:
            smallest = min(weights, key=lambda one: int(tf.TensorShape(one.shape).num_elements()))
            worker_weights.read([smallest])[0].numpy()

    def exchanged(self) -> list[keras.Variable]:
        """Return the variables that workers exchange at a meeting."""
        return [*worker_weights.weights_of(self._model), *worker_weights.states_of(self._model)]

    def _all_reduced_bytes(self, variables: Sequence[keras.Variable]) -> float:
        workers = self._group.size
        return 2 * (workers - 1) / workers * worker_weights.bytes_of(variables)

    def _mean_of(self, variables: Sequence[keras.Variable], slots: Sequence[keras.Variable] = ()) -> list[tf.Tensor]:
        """Return the means of variables, and of slots, whose labels are numbers: their paths differ between workers."""
        labels = [f"mean of {path}" for path in relative_paths([one.path for one in variables])]
        labels += [f"mean of slot {number}" for number in range(len(slots))]
        return self._group.mean(worker_weights.read([*variables, *slots]), labels)

    def _traced(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a function as a graph, traced once for each name."""
        if name not in self._functions:
            self._functions[name] = tf.function(tf.autograph.experimental.do_not_convert(function))
        return self._functions[name](*arguments)


class Averaging(Meeting):
    """The meetings of `LocalSGD`: all take the mean of weights, of states, and of the optimizers' variables."""

    def __init__(self, schedule: Any, group: Group, model: keras.Model) -> None:
        super().__init__(schedule, group, model)
        self._averages_moments = schedule.average_moments

    def perform(self, event: Event) -> None:
        self._traced("meet", self._meet)

    def _meet(self) -> None:
        worker_weights.write(self.exchanged(), self._mean_of(super().exchanged(), self._slots()))

    def exchanged(self) -> list[keras.Variable]:
        return [*super().exchanged(), *self._slots()]

    def _slots(self) -> list[keras.Variable]:
        slots = worker_weights.slots_of(self._model) if self._averages_moments else []
        return [one for one in slots if worker_weights.has_mean(one)]
