"""Figures of a whole batch that losses, metrics and states need before its first micro-batch is computed.

A loss with a mask or weights is divided by a sum over the whole batch, while the first gradient is taken before the
last micro-batch is computed. These divisors depend only on targets, weights, and the mask of the results, which
follows from the input. So the last stage computes them first.

A user's loss may compare examples, and no stage has the whole batch and the loss at the first micro-batch. So every
process tries each such loss on the same small random data, with the same result, and likewise each layer of the user's,
which may compare examples. Metrics are given the rows of all replicas, and states of which several replicas have parts
are refused.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods, stateless_scope
from tfdist.compat.keras import loss as keras_loss
from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.keras.symbolic import graphs
from tfdist.errors import UnsupportedError
from tfdist.parallel.pipeline.division import Division
from tfdist.parallel.pipeline.flow import Flow
from tfdist.training.checks import row_mixing
from tfdist.training.replica import current_step, judging
from tfdist.training.replica.judging import Rules

#: sums over the whole batch, in the order in which they are asked for
Sums = list[tuple[str, list[tf.Tensor]]]
_ROWS = 6
# largest relative difference that is rounding
_TOLERANCE = 1e-4


class Counting(current_step.Step):
    """A step that records the divisors that losses ask for, and computes nothing else."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sums: Sums = []

    def sum_in_the_middle(self, tensors: list[Any], *, what: str) -> list[Any]:
        sums = super().sum_in_the_middle(tensors, what=what)
        self.sums.append((what, sums))
        return sums

    def has_row_of_each(self, values: tf.Tensor) -> bool:
        return bool(values.shape.rank) and values.shape[0] == max(1, tf.get_static_value(self.rows))


def divisors(
    model: keras.Model, division: Division, data: Any, current: Counting, outputs: Sequence[tf.Tensor]
) -> Sums:
    """Return the sums over a batch by which the losses of a model divide."""
    _, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with current, keras.StatelessScope():  # a metric of a loss counts nothing now
        keras_trainer.compiled_loss(model, y, graphs.packed(division.graph, list(outputs)), sample_weight)
    return current.sums


def with_masks(outputs: Sequence[tf.Tensor], flow: Flow, inputs: Sequence[Any]) -> list[tf.Tensor]:
    """Return tensors that stand for a model's results, with the masks of those results."""
    masks: dict[int | None, Any] = {None: None}
    for number in {*flow.masks} - {None}:
        assert number is not None
        if flow.needs_weights(number):
            raise UnsupportedError(
                f"a loss is masked, and its mask, made by {flow.values[number].maker}, depends on the model's weights. "
                "A loss over several micro-batches divides by what all of their masks let through, which must be known "
                "before the first one is computed. Let masks follow from the model's inputs alone (Masking, Embedding, "
                "a compute_mask that looks at inputs), or pass microbatches=1 to the strategy.",
                name=flow.values[number].maker,
            )
        masks[number] = flow.of_inputs(number, inputs)
    return [graphs.with_mask(one, masks[number]) for one, number in zip(outputs, flow.masks, strict=True)]


def comparing_losses(model: keras.Model, graph: Any, targets: Any) -> list[str]:
    """Return the names of the losses that compute one value from several examples of a batch."""
    container = keras_trainer.compiled_losses(model)
    if container is None:
        return []
    random = np.random.default_rng(0)
    y_true = tf.nest.map_structure(lambda leaf: _like(leaf, random), targets)
    y_pred = graphs.packed(graph, [_like(tensor, random) for tensor in graph.outputs])
    with tf.init_scope():
        return [
            name
            for name, loss, true, pred in keras_loss.with_inputs(container, y_true, y_pred)
            if keras_loss.compares_examples(loss, pred)
            or (not keras_loss.is_of_keras(loss) and _compares(loss, true, pred))
        ]


def comparing_call(division: Division) -> str:
    """Return a layer or an operation that compares the rows of a batch, as a sentence's subject; "" if none does."""
    if division.comparing is None:
        name = next((call.name for call in division.calls if _compares_rows(call)), None)
        told = f"the layer {name!r}, which computes with other rows of a batch than an output's own,"
        division.comparing = "" if name is None else told
    return division.comparing


def _compares_rows(call: graphs.Call) -> bool:
    """Return whether a call's results for rows differ if other rows are left out; weights are random, as elsewhere."""
    layers = keras_trainer.layers(call.operation) if isinstance(call.operation, keras.layers.Layer) else []
    if layers and not layer_methods.comparing_rows(layers):
        return False
    random = np.random.default_rng(0)
    taken = [_like(tensor, random) for tensor in call.takes]
    has_rows = [bool(tensor.shape) and tensor.shape[0] is None for tensor in call.takes]
    weights = [variable for layer in layers for variable in layer.variables if variable.dtype.startswith("float")]
    numbers = [(one, random.uniform(0.1, 0.9, one.shape)) for one in weights]

    def outputs(*given: tf.Tensor) -> list[Any]:
        values = [(one, tf.constant(value, one.dtype)) for one, value in numbers]
        scope = stateless_scope.Updates(values, initialize_variables=False)
        with scope, layer_methods.without_chance(layers):
            return call.compute({id(tensor): one for tensor, one in zip(call.takes, given, strict=True)}, training=True)

    try:
        with tf.init_scope():
            specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in call.takes]
            traced = tf.function(outputs, autograph=False).get_concrete_function(*specs)
            if not row_mixing.can_compare(traced):
                return False
            bounds = ((0, _ROWS), (0, 2), (2, _ROWS))
            given = [
                [one[begin:end] if cut else one for one, cut in zip(taken, has_rows, strict=True)]
                for begin, end in bounds
            ]
            runs = [[np.asarray(one) for one in traced(*map(tf.constant, some))] for some in given]
    except Exception:  # noqa: BLE001 - the user's code, on numbers that it is not written for: a step will tell
        return False
    return any(row_mixing.differ(each, _TOLERANCE) for each in zip(*runs, strict=True))


def rules_of_metrics(model: keras.Model, replicas: int) -> Rules:
    """Return rules by which a user's metrics are given the rows of all replicas of the last stage."""
    if replicas == 1:
        return Rules()
    every = keras_trainer.metrics(model)
    own = [number for number, metric in enumerate(every) if metric_weights.counts_by_itself(metric)]
    numbers = range(len(every))  # a metric that takes the mean of a function asks once
    return Rules({**{("metric", number): "whole" for number in own}, **{("number", n): "whole" for n in numbers}})


def require_known_states(model: keras.Model, changed: Sequence[keras.Variable], replicas: int) -> None:
    """Raise if a user's layers have changed states of which several replicas have parts."""
    of_users = keras_variables.states_of_users(model) if replicas > 1 else set()
    for variable in changed:
        if id(variable) in of_users:
            raise UnsupportedError(
                f"the state {variable.path!r} is of a layer of your own, and the pipeline has {replicas} replicas of "
                "each stage: whether their states are added up, averaged or neither, no stage can try. Train with one "
                "replica of each stage (data=1), or under another strategy."
            )


def require_rows_apart(division: Division, replicas: int) -> None:
    """Raise if a layer compares rows of which several replicas have parts."""
    if (comparing := comparing_call(division)) and replicas > 1:
        raise UnsupportedError(
            f"the model has {comparing} and there are {replicas} replicas of each stage, with rows of their own. Train "
            "with one replica of each stage (data=1), or let layers use what each example has by itself, as "
            "keras.layers.LayerNormalization does."
        )


def _compares(loss: Any, y_true: Any, y_pred: Any) -> bool:
    if not keras_loss.reduces_by_itself(loss):
        return False

    def total(begin: int, end: int) -> np.ndarray:
        rows = [tf.nest.map_structure(lambda leaf: tf.constant(leaf[begin:end]), one) for one in (y_true, y_pred)]
        values = keras_loss.parts(loss, rows[0], rows[1], None).values
        # the user says what a loss of a single number is
        return np.asarray([float(tf.reduce_sum(values)) if values.shape.rank else 0.0])

    try:
        whole, parts = total(0, _ROWS), [(0.5, total(0, 2)), (0.5, total(2, _ROWS))]
    except Exception:  # noqa: BLE001 - the user's code, on numbers that it is not written for: a step will tell
        return False
    return judging.judge(whole, parts, None, tolerance=_TOLERANCE) not in ("sum", "unknown")


def _like(spec: Any, random: np.random.Generator) -> np.ndarray:
    """Return random positive numbers, or zeros and ones, in the shape of rows."""
    shape = [_ROWS, *(size or 3 for size in spec.shape[1:])]
    dtype = tf.as_dtype(spec.dtype)
    numbers = random.uniform(0.1, 0.9, shape) if dtype.is_floating else random.integers(0, 2, shape)
    return numbers.astype(dtype.as_numpy_dtype)
