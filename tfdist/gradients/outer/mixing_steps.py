"""Meetings that mix weights without making them equal: `ElasticAveraging` and `Gossip`."""

import functools
from collections.abc import Sequence

import keras
import tensorflow as tf

from tfdist.checkpoint.state_resizing import ShardedState
from tfdist.collectives.traced import relative_paths
from tfdist.gradients.outer import meeting_schedules, worker_weights
from tfdist.gradients.outer.meeting_schedules import ElasticAveraging, Event, Gossip
from tfdist.gradients.outer.meetings import Group, Load, Meeting


class Springs(Meeting):
    """The meetings of `ElasticAveraging`; every worker has the center, and all change it in the same way."""

    remembers = True

    def __init__(self, schedule: ElasticAveraging, group: Group, model: keras.Model) -> None:
        super().__init__(schedule, group, model)
        self._alpha = schedule.alpha
        self._center: list[keras.Variable] = []

    def make(self) -> None:
        weights = worker_weights.weights_of(self._model)
        self._center = [
            keras.Variable(value, name=f"center_{number}", dtype=one.dtype, trainable=False)
            for number, (one, value) in enumerate(zip(weights, worker_weights.read(weights), strict=True))
        ]

    def begin(self) -> None:
        worker_weights.write(self._center, worker_weights.read(self._weights) if self._center else [])

    def memory(self) -> list[ShardedState]:
        return [ShardedState("the center of the workers' weights", self._center, rule="keep", axis="worker")]

    def perform(self, event: Event) -> None:
        self._traced("meet", self._meet)

    def known(self) -> list[tf.Tensor] | None:
        return worker_weights.read(self._center) or None

    def mean(self) -> list[tf.Tensor]:
        states = worker_weights.states_of(self._model)
        means = self._traced("states", functools.partial(self._mean_of, states)) if states else []
        return [*worker_weights.read(self._center), *means]

    @property
    def _weights(self) -> list[keras.Variable]:
        return worker_weights.weights_of(self._model)

    def _meet(self) -> None:
        weights, centers = worker_weights.read(self._weights), worker_weights.read(self._center)
        pulls = [
            (one - center) * tf.constant(self._alpha, one.dtype) for one, center in zip(weights, centers, strict=True)
        ]
        paths = relative_paths([one.path for one in self._weights])
        totals = self._group.traced.all_reduce(pulls, [f"pull of {path}" for path in paths])
        worker_weights.write(self._weights, [one - pull for one, pull in zip(weights, pulls, strict=True)])
        worker_weights.write(self._center, [one + total for one, total in zip(centers, totals, strict=True)])
        states = worker_weights.states_of(self._model)
        worker_weights.write(states, self._mean_of(states))


class Neighbours(Meeting):
    """The meetings of `Gossip`: each worker sends to some others, and mixes what it receives with its own values."""

    def __init__(self, schedule: Gossip, group: Group, model: keras.Model) -> None:
        super().__init__(schedule, group, model)
        self._schedule = schedule
        self._weight: list[keras.Variable] = []

    def make(self) -> None:
        """Begin with weight 1 for this worker, if weights are passed on."""
        if self._schedule.push_sum:
            dtype = worker_weights.common_dtype(self.exchanged()).name
            self._weight = [keras.Variable(1.0, name="weight_passed_on", dtype=dtype, trainable=False)]

    def memory(self) -> list[ShardedState]:
        return [ShardedState("the weights that workers have passed on", self._weight, rule="sum", axis="worker")]

    def perform(self, event: Event) -> None:
        number = event.fragment % meeting_schedules.rounds(self._schedule, self._group.traced.size)
        self._traced(f"meet {number}", functools.partial(self._meet, number))

    def load(self) -> Load:
        workers = self._group.traced.size
        table = meeting_schedules.mixing(self._schedule, workers, 0)
        neighbours = sum(bool(row[0]) for row in table[1:])
        exchanged = self.exchanged()
        wire_bytes = neighbours * worker_weights.bytes_of(exchanged)
        return Load(wire_bytes, stepping_seconds=self._write_seconds(exchanged))

    def _meet(self, number: int) -> None:
        variables = self.exchanged()
        dtype = worker_weights.common_dtype(variables)
        values = [tf.cast(one, dtype) for one in worker_weights.read(variables)]
        sizes = [tf.TensorShape(one.shape).num_elements() for one in values]
        flat = tf.concat([tf.reshape(one, [-1]) for one in values], axis=0)
        if self._weight:
            weight = tf.convert_to_tensor(self._weight[0].value)
            flat = tf.concat([flat * weight, [weight]], axis=0)
        mixed = mixed_with(
            self._group, meeting_schedules.mixing(self._schedule, self._group.traced.size, number), flat, number
        )
        if self._weight:
            self._weight[0].assign(mixed[-1])
            mixed = mixed[:-1] / mixed[-1]
        parts = tf.split(mixed, sizes)
        worker_weights.write(variables, [tf.reshape(part, one.shape) for part, one in zip(parts, values, strict=True)])


def mixed_with(group: Group, table: Sequence[Sequence[float]], values: tf.Tensor, number: int) -> tf.Tensor:
    """Send values to all workers that have a weight for this one, and return this worker's mixture."""
    collective, rank = group.traced.collective, group.traced.rank
    for other, weights in enumerate(table):
        if other != rank and weights[rank]:
            collective.send(values, key=f"gossip {number} from {rank} to {other}", to=other)
    total = values * table[rank][rank]
    for other, weight in enumerate(table[rank]):
        if other != rank and weight:
            spec = tf.TensorSpec(values.shape, values.dtype)
            total += weight * collective.receive(spec, key=f"gossip {number} from {other} to {rank}", source=other)
    return total
