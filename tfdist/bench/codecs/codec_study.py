"""Bytes, times and error of a codec on the gradients of a model, in worker processes that do not communicate."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist.bench.codecs.codec_choice import codec_of, load
from tfdist.bench.workers import training_loops
from tfdist.bench.workers.workloads import MODELS
from tfdist.collectives import buckets
from tfdist.compression import messages
from tfdist.compression.auto import Auto
from tfdist.compression.codec import Codec, Exchange, reduced_bytes
from tfdist.compression.codec_exchange import by_itself, together
from tfdist.compression.messages import AllReduce, Context
from tfdist.gradients.reduction.compressed_reducer import grouped, is_compressed, joined

_SEED = 7


def study(codec: str, model: str, global_batch_size: int, times: int, modules: Sequence[str]) -> dict[str, Any]:
    load(modules)
    workers = clusters.from_environment()
    chosen, parts = codec_of(codec), _parts(model, global_batch_size, workers.num_workers)
    if isinstance(chosen, Auto):
        return {"wire_bytes": None, "seconds": [], "error": None}
    specs = [tf.TensorSpec(one.shape, one.dtype) for one in parts[0]]
    groups = units(chosen, specs)
    return {
        "wire_bytes": wire_bytes(chosen, specs, workers.num_workers),
        "seconds": _computing(chosen, parts[workers.worker_index], groups, workers, times),
        "error": None if workers.worker_index else _error(chosen, parts, groups),
    }


def _computing(
    codec: Codec, gradients: list[tf.Tensor], groups: list[list[int]], workers: clusters.Cluster, times: int
) -> list[tuple[float, float]]:
    """Return the seconds of both parts; this worker's own messages stand in for the others', without delay."""
    if not groups:
        return [(0.0, 0.0)] * times
    rank, size = workers.worker_index, workers.num_workers
    values = [joined([gradients[index] for index in group]) for group in groups]
    states = [list(_first_state(codec, value)) for value in values]

    def exchanges(step: tf.Tensor, states: Any) -> list[Exchange]:
        both = enumerate(zip(values, states, strict=True))
        return [
            codec.exchange(value, tuple(state), _context(codec, rank, size, step, place))
            for place, (value, state) in both
        ]

    @tf.function
    def first(step: tf.Tensor, states: Any) -> list[tf.Tensor]:
        sent = [next(exchange) for exchange in exchanges(step, states)]
        return [one.tensor if isinstance(one, AllReduce) else one.rows for one in sent]

    @tf.function
    def whole(step: tf.Tensor, states: Any) -> list[Any]:
        ends = [by_itself(exchange, size) for exchange in exchanges(step, states)]
        return [(end.total, list(end.state)) for end in ends]

    found = []
    for number in range(times + 1):  # the first one, which traces, is not counted
        step = tf.constant(number)
        before, all_of_it = _seconds(first, step, states), _seconds(whole, step, states)
        found.append((before, max(all_of_it - before, 0.0)))
    return found[1:]


def _error(codec: Codec, parts: list[list[tf.Tensor]], groups: list[list[int]]) -> float:
    size, difference = len(parts), 0.0
    for place, group in enumerate(groups):
        values = [joined([gradients[index] for index in group]) for gradients in parts]
        state = _first_state(codec, values[0])
        members = [
            codec.exchange(value, state, _context(codec, rank, size, tf.constant(0), place))
            for rank, value in enumerate(values)
        ]
        difference += _square(together(members)[0].total - tf.add_n(values))
    exact = sum(_square(tf.add_n(list(each))) for each in zip(*parts, strict=True))
    return (difference / exact) ** 0.5 if exact else 0.0


@functools.lru_cache(maxsize=1)
def _parts(model: str, global_batch_size: int, members: int) -> list[list[tf.Tensor]]:
    """Return each member's part of the mean gradients of a new model on one batch; kept for the next codec."""
    keras.utils.set_random_seed(_SEED)
    network = MODELS[model].build()
    loss_function = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    variables = [variable.value for variable in network.trainable_variables]
    x, y = next(iter(training_loops.dataset(model, global_batch_size)))

    @tf.function
    def part(x: tf.Tensor, y: tf.Tensor) -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            loss = loss_function(y, network(x, training=True)) / members
        return tape.gradient(loss, variables)

    return [part(*both) for both in zip(tf.split(x, members), tf.split(y, members), strict=True)]


def _first_state(codec: Codec, value: tf.Tensor) -> tuple[tf.Tensor, ...]:
    return tuple(state.initial for state in codec.init(tf.TensorSpec(value.shape, value.dtype)))


def _context(codec: Codec, rank: int, size: int, step: tf.Tensor, place: int) -> Context:
    slower = tf.constant(1.0) if codec.needs_learning_rate else None
    return messages.context_of(rank, size, step=step, seed=_SEED, place=place, slower=slower)


def _square(value: tf.Tensor) -> float:
    return float(tf.reduce_sum(tf.square(tf.cast(value, tf.float64))))


def _seconds(function: Callable[..., Any], *arguments: Any) -> float:
    began = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - began


def units(codec: Codec, specs: Sequence[tf.TensorSpec]) -> list[list[int]]:
    """Return the indices of gradients that are compressed as one tensor, grouped as by `Compressed` in a step.

    Example:
        >>> from tfdist.compression import PowerSGD, QSGD
        >>> specs = [tf.TensorSpec(shape) for shape in ([500, 40], [40], [40, 400])]
        >>> units(QSGD(bits=8), specs), units(PowerSGD(rank=2), specs)
        ([[2, 0]], [[2], [0]])
    """
    large = [index for index in reversed(range(len(specs))) if is_compressed(codec, specs[index])]
    return grouped(codec, {index: specs[index] for index in large}, buckets.DEFAULT_BYTES)


def wire_bytes(codec: Codec, specs: Sequence[tf.TensorSpec], members: int) -> float:
    """Return the bytes that a member sends for the gradients of a step by the formulas, without headers and metrics."""
    groups = units(codec, specs)
    compressed = {index for group in groups for index in group}
    whole = (spec for index, spec in enumerate(specs) if index not in compressed)
    return sum(codec.wire_bytes(_joined([specs[index] for index in group]), members) for group in groups) + sum(
        reduced_bytes(spec.shape.num_elements(), spec.dtype.size, members) for spec in whole
    )


def _joined(specs: Sequence[tf.TensorSpec]) -> tf.TensorSpec:
    if len(specs) == 1:
        return specs[0]
    return tf.TensorSpec([sum(spec.shape.num_elements() for spec in specs)], specs[0].dtype)
