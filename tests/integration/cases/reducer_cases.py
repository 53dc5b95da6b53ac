"""The guarantee of every reducer, under this process's strategy: N replicas have the gradients of one device."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import error_feedback
import keras
import numpy as np
import tensorflow as tf

import tfdist.strategies
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.gradients.reduction import reducer
from tfdist.gradients.reduction.reducer import Choices, Gradient
from tfdist.training.parameter_servers import gradient_push, transport

# the weight of each replica, or None, and the gradients of each replica
Job = tuple[Sequence[float] | None, Sequence[list[Gradient]]]
# takes an optimizer's choices; returns the reduced gradients of each local replica for each job
Meet = Callable[[Choices, Sequence[Job]], list[list[list[Gradient]]]]

HEIGHT = 7  # of tables
POSITIONS = "positions/embeddings"  # of which every replica has all rows
#: relative to the largest element of any gradient, of which each replica's part is rounded once, and their sum
TOLERANCES = {None: 1e-6, "float16": 2.0**-9, "bfloat16": 2.0**-6}
CHOICES = (("mean", None), ("mean", "float16"), ("mean", "bfloat16"), ("adasum", None), ("adasum", "bfloat16"))


def battery(
    meet: Meet, replicas: int, *, among: Sequence[tuple[str, str | None]] = CHOICES, briefly: Sequence[str] = ()
) -> list[str]:
    """Return the errors of gradients that replicas reduce under these choices, as sentences.

    For kinds that are tried briefly, rows and other dtypes are left out.
    """
    wrong = []
    for kind, wire_dtype in among:
        choices, lists = Choices(kind, wire_dtype), _lists(replicas)
        if kind in briefly:
            del lists["all kinds"]
        cases = [("uneven", *one) for one in lists.items()]
        cases += [(shares, "two sizes", lists["two sizes"]) for shares in ("even", "weighed before")]
        cases += [("weighed before", "a scalar", lists["a scalar"])]
        jobs = [_job(shares, made) for shares, _, made in cases]
        for (shares, name, made), (weights, _), met in zip(cases, jobs, meet(choices, jobs), strict=True):
            if any(_bits(one) != _bits(other) for reduced in met for one, other in zip(reduced, met[0], strict=True)):
                wrong.append(f"{kind}, {wire_dtype}, {shares}, {name}: replicas differ")
            for reduced in met:
                found = _difference(reduced, made, weights or [1.0] * replicas, choices)
                wrong += [f"{kind}, {wire_dtype}, {shares}, {name}: {one}" for one in found]
    return wrong


def _job(shares: str, made: list[list[Gradient]]) -> Job:
    """Return weights and gradients; a replica without examples may hold anything."""
    weights = _weights(shares, len(made))
    pairs = zip(made, weights or [1.0] * len(made), strict=True)
    return weights, [[one if weight else one.mapped(_nan) for one in own] for own, weight in pairs]


def collectives(among: Sequence[tuple[str, str | None]] = CHOICES, briefly: Sequence[str] = ()) -> list[str]:
    """Run the battery over the replicas of the strategy of this process and its like."""
    strategy = tfdist.strategies.from_environment()

    def meet(choices: Choices, jobs: Sequence[Job]) -> list[list[list[Gradient]]]:
        def on_replica(zero: tf.Tensor) -> list[list[Any]]:
            index, values = tf_strategies.replica_index(), []
            for weights, given in jobs:
                weight = None if weights is None else tf.constant(weights[index], tf.float64)
                weighted = reducer.weighted(of_examples(given[index], zero), weight)
                reduce = functools.partial(_reduced, reducer.OverReplicas(choices), weighted)
                # also in a condition, as an accumulation and a loss scale have it
                in_condition = weights is None and len(given[index]) == 1
                values.append(tf.cond(zero < 1, reduce, reduce) if in_condition else reduce())
            return values

        step = tf.function(lambda zero: strategy.run(on_replica, args=(zero,)), autograph=False)
        locally = tf_strategies.local_values(strategy, step(tf.constant(0, tf.int64)))
        return [[_with(own[job], given[0]) for own in locally] for job, (_, given) in enumerate(jobs)]

    found = battery(meet, tf_strategies.replica_count(strategy), among=among, briefly=briefly)
    return [*found, *remembered(strategy)]


def remembered(strategy: Any) -> Iterator[str]:
    """Yield what is wrong with a reducer that remembers: what was applied and the rests are all gradients together."""
    replicas, steps, draw = tf_strategies.replica_count(strategy), 5, np.random.default_rng(2)
    # sums of numbers like these are exact
    given = draw.integers(-3000, 3000, size=(steps + 1, replicas, 2, 3)).astype(np.float32) / 2**14
    given[steps, 0] = np.inf  # which is skipped, and nothing of it remembered
    with strategy.scope():
        weights = [keras.Variable(tf.zeros(3), name=name) for name in ("bias", "kernel")]
        optimizer = error_feedback.ErrorFeedback(keras.optimizers.SGD(1.0), loss_scale=2.0)
        optimizer.build(weights)

    def on_replica(step: tf.Tensor) -> None:
        own = tf.constant(given)[step, tf_strategies.replica_index()]
        for place in (1, 0):  # one variable in each call, as a step with two losses has it
            optimizer.apply([2.0 * own[place]], [weights[place]])

    run = tf.function(lambda step: strategy.run(on_replica, args=(step,)), autograph=False)
    rests = np.zeros((replicas, 2, 3), np.float32)
    for step in range(steps + 1):
        run(tf.constant(step))
    for step in range(steps):
        totals = given[step] + rests
        rests = totals - np.round(totals / error_feedback.STEP) * error_feedback.STEP
    [state] = optimizer.sharded_state()
    local = [[copy.numpy() for copy in tf_strategies.copies(one.value)] for one in state.variables]
    first = strategy.workers.index * len(local[0])
    for place, copies in enumerate(local):
        for index, copy in enumerate(copies):
            if replicas > 1 and not np.array_equal(copy, rests[first + index, place]):
                yield f"replica {first + index} remembers {copy}, not {rests[first + index, place]}"
        applied = -weights[place].numpy()
        wanted = given[:steps].sum(axis=(0, 1))[place] - (rests.sum(axis=0)[place] if replicas > 1 else 0)
        if not np.array_equal(applied, wanted):
            yield f"{applied} was applied, not {wanted}"


def _reduced(chain: reducer.GradientReducer, gradients: list[Gradient], half: tf.DType = tf.float16) -> list[Any]:
    assert chain.variables([tf.TensorSpec(one.value.shape, one.value.dtype) for one in gradients]) == []
    reduced = chain.reduce(gradients)
    dtypes = [half if one.value.dtype == tf.float16 else one.value.dtype for one in gradients]
    assert [one.path for one in reduced] == [one.path for one in gradients]
    assert [one.value.dtype for one in reduced] == dtypes
    return [one.value for one in reduced]


def _with(values: list[Any], gradients: list[Gradient]) -> list[Gradient]:
    return [replace(one, value=value) for one, value in zip(gradients, tf.nest.flatten(values), strict=True)]


def of_examples(gradients: list[Gradient], zero: tf.Tensor) -> list[Gradient]:
    """Return gradients whose indices follow from an input of the step, except those of positions."""

    def followed(gradient: Gradient) -> Gradient:
        value = gradient.value
        if not isinstance(value, tf.IndexedSlices):
            return gradient
        is_constant = gradient.path == POSITIONS
        indices = tf.constant(value.indices.numpy()) if is_constant else value.indices + zero
        return replace(gradient, value=tf.IndexedSlices(value.values, indices, value.dense_shape))

    return [followed(gradient) for gradient in gradients]


def _weights(shares: str, replicas: int) -> list[float] | None:
    """Return shares of the examples that add up to one; None where losses were weighed, and gradients add up."""
    if shares == "weighed before":
        return None
    rows = [0 if shares == "uneven" and index == replicas - 1 else 3 + index for index in range(replicas)]
    rows = [1] * replicas if shares == "even" else rows
    return [count / max(1, sum(rows)) for count in rows] if replicas > 1 else [1.0]


def _lists(replicas: int) -> dict[str, list[list[Gradient]]]:
    """Return lists of gradients, one for each replica."""
    draw = np.random.default_rng(0)

    def each(value: Callable[[int], Any], *paths: str) -> list[list[Gradient]]:
        return [[Gradient(tf.constant(value(index), tf.float32), path) for path in paths] for index in range(replicas)]

    return {
        "no gradients": each(lambda index: 0.0),
        "a scalar": each(lambda index: draw.normal(), "bias"),
        "zeros": each(lambda index: np.zeros(3), "bias"),
        "two sizes": each(lambda index: draw.normal(size=(4, 3)) * 10.0**index, "dense/kernel", "dense/bias"),
        "all kinds": _all_kinds(replicas),
    }


def _all_kinds(replicas: int) -> list[list[Gradient]]:
    """Return gradients of several dtypes, and rows: of examples, to be added up or not, and of positions."""
    draw = np.random.default_rng(1)

    def dense(*shape: int, dtype: str = "float32") -> Any:
        return tf.constant(draw.normal(size=shape), dtype)

    def rows(indices: Any) -> tf.IndexedSlices:
        return tf.IndexedSlices(dense(len(indices), 2), tf.constant(indices, tf.int64), tf.constant([HEIGHT, 2]))

    return [
        [
            Gradient(dense(2, 3), "dense/kernel"),
            Gradient(rows(draw.integers(0, 3, size=4 + index)), "words/embeddings"),
            Gradient(dense(3, dtype="float64"), "wide"),
            Gradient(rows([0, 4, 4]), POSITIONS),
            Gradient(rows(draw.integers(0, 3, size=5)), "added/embeddings", keep_duplicate_indices=False),
            Gradient(dense(2, dtype="float16"), "half"),
            Gradient(dense(), "dense/bias", keep_duplicate_indices=False),
        ]
        for index in range(replicas)
    ]


def _nan(values: tf.Tensor) -> tf.Tensor:
    return values * tf.constant(np.nan, values.dtype)


def _difference(
    reduced: list[Gradient], made: Sequence[list[Gradient]], weights: Sequence[float], choices: Choices
) -> Iterator[str]:
    """Yield where reduced gradients are not those of one device."""
    for place, gradient in enumerate(reduced):
        own = [replica[place] for replica in made]
        parts = [_dense(one) * weight for one, weight in zip(own, weights, strict=True)]
        wanted = sum(parts)
        if choices.kind == "adasum" and len(own) > 1:
            wanted = reducer.adasum([tf.constant(len(own) * part) for part in parts]).numpy()
        largest = max(1e-30, *(float(np.abs(part).max()) * len(own) for part in parts))
        half = "float16" if own[0].value.dtype == tf.float16 else None
        tolerance = TOLERANCES[choices.wire_dtype or half] * largest
        error = float(np.abs(_dense(gradient) - wanted).max())
        if not error <= tolerance:
            yield f"{gradient.path} is off by {error}, of {largest}"
        if choices.kind == "mean" and own[0].keep_duplicate_indices and isinstance(own[0].value, tf.IndexedSlices):
            yield from _rows_that_met(gradient, own)


def _rows_that_met(gradient: Gradient, own: list[Gradient]) -> Iterator[str]:
    there = sorted(gradient.value.indices.numpy().tolist())
    replicas = own[:1] if gradient.path == POSITIONS else own
    wanted = sorted(index for one in replicas for index in one.value.indices.numpy().tolist())
    if there != wanted:
        yield f"{gradient.path} has the rows {there} instead of {wanted}"


def _bits(gradient: Gradient) -> bytes:
    value = gradient.value
    rows = isinstance(value, tf.IndexedSlices)
    return bytes(value.values.numpy().tobytes() + value.indices.numpy().tobytes() if rows else value.numpy().tobytes())


def _dense(gradient: Gradient) -> np.ndarray:
    value = gradient.value
    if not isinstance(value, tf.IndexedSlices):
        return np.asarray(value, np.float64)
    total = np.zeros([HEIGHT, value.values.shape[1]])
    np.add.at(total, value.indices.numpy(), np.asarray(value.values, np.float64))
    return total


def servers(strategy: Any, parts: int) -> list[str]:
    """Run the battery over parts of a batch, whose gradients parameter servers add up."""
    with strategy.scope():
        made = [own for (own,) in _lists(1).values()]
        variables = {one.path: keras.Variable(tf.zeros(one.value.shape)) for own in made for one in own}

    def meet(choices: Choices, jobs: Sequence[Job]) -> list[list[list[Gradient]]]:
        def on_chief(zero: tf.Tensor) -> list[list[Any]]:
            return [_through_servers(choices, *job, variables, zero) for job in jobs]

        step = tf.function(lambda zero: strategy.run(on_chief, args=(zero,)), autograph=False)
        totals = step(tf.constant(0, tf.int64))
        return [[_with(own, given[0])] for own, (_, given) in zip(totals, jobs, strict=True)]

    return battery(meet, parts, among=[choice for choice in CHOICES if choice[0] == "mean"])


def _through_servers(choices: Choices, weights: Any, given: Any, variables: dict[str, Any], zero: tf.Tensor) -> Any:
    """Leave each part's gradients on the servers, as workers do, and add them up, as the chief does."""
    own = []
    for part, gradients in enumerate(given):
        exchange = gradient_push.ToServers([variables[one.path] for one in gradients], in_parts=False)
        weight = None if weights is None else tf.constant(weights[part], tf.float64)
        # without a wire dtype servers add up halves as float32
        half = tf.float16 if choices.wire_dtype else tf.float32
        _reduced(reducer.composed(choices, exchange), reducer.weighted(of_examples(gradients, zero), weight), half)
        own.append(exchange.tensors)
    return [
        transport.sum_of(kind, variables[one.path], own) for kind, one in zip(exchange.kinds, given[0], strict=True)
    ]
