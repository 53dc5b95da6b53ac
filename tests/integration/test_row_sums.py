"""Means and sums that are shown by graphs alone, whatever rows and weights are; and what only looks like one."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import ops

from tfdist.training.checks import row_rules, row_sums

WEIGHT, BIAS, KERNEL, TABLE = (tf.Variable(tf.ones(shape)) for shape in ((4, 3), (3,), (2, 2, 1, 3), (9, 4)))
SWITCH, STEP = tf.Variable(0.0), tf.Variable(0)
STATE = tf.Variable(tf.ones(3))
ATTENTION = keras.layers.MultiHeadAttention(2, 2)
ATTENTION.build((None, 2, 2), (None, 2, 2))
NORMALIZATION = keras.layers.LayerNormalization()
NORMALIZATION.build((None, 4))
DENSE = keras.layers.Dense(3, "gelu")
DENSE.build((None, 2, 2))


def outputs(x: tf.Tensor) -> tf.Tensor:
    return tf.nn.relu(NORMALIZATION(x) @ WEIGHT + BIAS)


def pictures(x: tf.Tensor) -> tf.Tensor:
    made = tf.nn.conv2d(tf.reshape(x, (-1, 2, 2, 1)), KERNEL, 1, "SAME")
    return tf.reduce_mean(tf.nn.max_pool2d(made, 2, 2, "SAME"), axis=(1, 2))


def attended(x: tf.Tensor) -> tf.Tensor:
    tokens = tf.reshape(x, (-1, 2, 2))
    return DENSE(tokens + ATTENTION(tokens, tokens))[:, 0]


def looked_up(x: tf.Tensor) -> tf.Tensor:
    return tf.gather(TABLE, tf.cast(x[:, 0], tf.int32))


def entropy(x: tf.Tensor, made: tf.Tensor) -> tf.Tensor:
    labels = tf.cast(x[:, 0] > 0.5, tf.int32)
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, made)


def gradients(loss: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], Any]:
    def of(x: tf.Tensor) -> Any:
        every = [WEIGHT, BIAS, KERNEL, TABLE, *ATTENTION.trainable_weights, *DENSE.trainable_weights]
        with tf.GradientTape() as tape:
            value = loss(x)
        return tape.gradient(value, [one.value if hasattr(one, "path") else one for one in every])

    return of


def sum_over_batch(x: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.square(outputs(x))) / tf.cast(tf.shape(x)[0], tf.float32)


def mask(x: tf.Tensor) -> tf.Tensor:
    return tf.cast(x[:, 0] > -1e9, tf.float32)


SHOWN: dict[str, tuple[str, Callable[[tf.Tensor], Any]]] = {
    "a mean": ("mean", lambda x: tf.reduce_mean(outputs(x))),
    "a sum": ("sum", lambda x: tf.reduce_sum(outputs(x))),
    "a sum by the number of rows": ("mean", sum_over_batch),
    "a mean and a penalty of weights": ("mean", lambda x: tf.reduce_mean(outputs(x)) + tf.reduce_sum(WEIGHT**2)),
    "a number of rows": ("sum", lambda x: tf.cast(tf.shape(x)[0], tf.float32)),
    "a number of elements": ("sum", lambda x: tf.cast(tf.size(x), tf.float32)),
    "a variable": ("equal", lambda x: SWITCH + 1.0),
    "a count of those above a limit": ("sum", lambda x: tf.math.count_nonzero(x[:, 0] > 0.5, dtype=tf.float32)),
    "noise of each row": (
        "mean",
        lambda x: tf.reduce_mean(outputs(x) * tf.random.stateless_normal(ops.shape(x[:, :3]), [1, 2])),
    ),
    "gradients of a mean": ("mean", gradients(sum_over_batch)),
    "gradients of a sum": ("sum", gradients(lambda x: tf.reduce_sum(outputs(x) ** 2))),
    "gradients of pictures": ("mean", gradients(lambda x: tf.reduce_mean(entropy(x, pictures(x))))),
    "gradients of attention": ("mean", gradients(lambda x: tf.reduce_mean(entropy(x, attended(x))))),
    "rows of a table": ("mean", gradients(lambda x: tf.reduce_mean(looked_up(x)))),
    "gradients with a limit on each row": (
        "sum",
        gradients(lambda x: tf.reduce_sum(tf.clip_by_value(outputs(x), 0, 1))),
    ),
}
ONLY_LOOKS: dict[str, Callable[[tf.Tensor], Any]] = {
    "a mask that hides nothing": lambda x: tf.reduce_sum(outputs(x)[:, 0] * mask(x)) / tf.reduce_sum(mask(x)),
    "gradients of that": gradients(lambda x: tf.reduce_sum(outputs(x)[:, 0] * mask(x)) / tf.reduce_sum(mask(x))),
    "a limit on a mean": lambda x: tf.minimum(tf.reduce_mean(outputs(x)), 1e9),
    "a limit on gradients": lambda x: tf.clip_by_global_norm(gradients(sum_over_batch)(x), 1e9)[0],
    "a sum that begins later": lambda x: tf.reduce_mean(outputs(x)) + SWITCH * tf.reduce_sum(outputs(x)),
    "a penalty that is zero yet": lambda x: tf.reduce_mean(outputs(x)) + tf.reduce_sum(tf.nn.relu(outputs(x) - 1e9)),
    "gradients of such a penalty": gradients(
        lambda x: tf.reduce_mean(outputs(x)) + tf.reduce_sum(tf.nn.relu(outputs(x) - 1e9))
    ),
    "another loss from a step on": lambda x: tf.cond(
        STEP > 5, lambda: tf.reduce_sum(outputs(x)), lambda: tf.reduce_mean(outputs(x))
    ),
    "a choice of losses": lambda x: tf.where(STEP > 5, tf.reduce_sum(outputs(x)), tf.reduce_mean(outputs(x))),
    "rows less their mean": lambda x: tf.reduce_mean(tf.abs(x - tf.reduce_mean(x, axis=0))),
    "rows that are compared": lambda x: tf.reduce_mean(tf.nn.softmax(x @ tf.transpose(x))),
    "rows and the rows behind": lambda x: tf.reduce_mean(tf.abs(x[1:] - x[:-1])),
    "rows in order": lambda x: tf.reduce_mean(tf.cumsum(x)),
    "distinct rows": lambda x: tf.reduce_mean(tf.cast(tf.unique(x[:, 0])[0], tf.float32)),
    "rows that are kept": lambda x: tf.reduce_mean(tf.boolean_mask(x, x[:, 0] > -1e9)),
    "a square of a mean": lambda x: tf.reduce_mean(x) ** 2,
    "a mean of places": lambda x: tf.reduce_mean(tf.cast(tf.range(tf.shape(x)[0]), tf.float32) * x[:, 0]),
    "the largest": lambda x: tf.reduce_max(x),
    "by the root of the number of rows": lambda x: tf.reduce_sum(x) / tf.sqrt(tf.cast(tf.shape(x)[0], tf.float32)),
}
STATES: dict[str, tuple[str, Callable[[tf.Tensor, Any], Any]]] = {
    "a count": ("sum", lambda x, state: state + tf.cast(tf.shape(x)[0], tf.float32)),
    "a sum": ("sum", lambda x, state: state + tf.reduce_sum(outputs(x), axis=0)),
    "a moving average": ("mean", lambda x, state: 0.9 * state + 0.1 * tf.reduce_mean(outputs(x), axis=0)),
    "steps": ("equal", lambda x, state: state + 1.0),
    "a sum and something that is zero yet": ("unknown", lambda x, state: state + SWITCH + tf.reduce_sum(outputs(x), 0)),
    "the largest": ("unknown", lambda x, state: tf.maximum(state, tf.reduce_max(outputs(x), axis=0))),
}


def shown(function: Callable[..., Any], *, has_state: bool = False) -> str:
    found: list[str] = []

    @tf.function(input_signature=[tf.TensorSpec([None, 4])], autograph=False)
    def traced(x: tf.Tensor) -> None:
        if has_state:
            former = tf.convert_to_tensor(STATE)
            found.extend(row_sums.shown([function(x, former)], [x], former))
        else:
            found.extend(row_sums.shown([function(x)], [x]))

    traced.get_concrete_function()
    return found[0]


@pytest.mark.parametrize("name", SHOWN)
def test_what_holds_for_all_values_is_shown(name: str) -> None:
    expected, function = SHOWN[name]
    assert shown(function) == expected


@pytest.mark.parametrize("name", ONLY_LOOKS)
def test_what_depends_on_values_is_not_shown(name: str) -> None:
    assert shown(ONLY_LOOKS[name]) == "unknown"


@pytest.mark.parametrize("name", STATES)
def test_changes_of_states(name: str) -> None:
    expected, function = STATES[name]
    assert shown(function, has_state=True) == expected


def test_rows_of_unlike_length_show_nothing() -> None:
    found: list[str] = []

    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.float32, 1)], autograph=False)
    def traced(x: tf.RaggedTensor) -> None:
        found.extend(row_sums.shown([tf.reduce_mean(x.values)], [x]))

    traced.get_concrete_function()
    assert found == ["unknown"]


def test_a_rule_that_fails_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(op: Any, given: Any) -> Any:
        raise TypeError("an operation in another form")

    monkeypatch.setitem(row_rules.RULES, "Mean", fails)
    assert shown(lambda x: tf.reduce_mean(x)) == "unknown"
    assert shown(lambda x: tf.reduce_sum(x)) == "sum"
