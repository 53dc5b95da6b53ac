"""Values that a step computes at its end, and only if it uses them; and the loss of logits in parts, their purpose."""

import contextlib
import re
from collections.abc import Callable
from typing import Any, cast

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster.mesh import Mesh
from tfdist.collectives.backends.local_collective import LocalCollective
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow.meshes.graph_rewrites import Late
from tfdist.parallel.compute.activations import Along
from tfdist.parallel.compute.vocabulary import Logits
from tfdist.parallel.mesh_axes import Axes

# what a step does with what is promised, and whether that takes its numbers
USES: dict[str, tuple[Callable[[tf.Tensor], Any], bool]] = {
    "nothing": (lambda promised: tf.constant(1.0), False),
    "its shape": (lambda promised: tf.reduce_sum(tf.shape(promised)), False),
    "what is dropped": (lambda promised: (tf.nn.softmax(promised), tf.constant(1.0))[1], False),
    "a result": (lambda promised: promised, True),
    "a sum": (lambda promised: tf.reduce_sum(tf.cast(promised, tf.float64)), True),
    "a condition": (lambda promised: tf.cond(promised[0] > 0, lambda: promised, lambda: -promised), True),
    "an effect": (lambda promised: (tf.debugging.assert_positive(promised), tf.constant(1.0))[1], True),
}


@pytest.mark.parametrize("use", USES)
def test_a_promise_is_kept_where_its_numbers_matter(use: str) -> None:
    late, made = Late(may_wait=True), []
    act, matters = USES[use]

    def make() -> tf.Tensor:
        made.append(1)
        return tf.constant([1.0, 2.0, 3.0])

    @tf.function(autograph=False)
    def step() -> Any:
        with late.step() as returned:
            result = act(late.promise(make, tf.constant([3]), tf.constant(0.0), "known"))
            returned.append(result)
        return result

    result = step()
    assert len(made) == matters
    if use == "a result":
        assert result.numpy().tolist() == [1, 2, 3]
    if use == "a sum":
        assert float(result) == 6


@pytest.mark.parametrize("may_wait", [False, True])
def test_what_cannot_wait_is_made_at_once(may_wait: bool) -> None:
    late = Late(may_wait=may_wait)
    assert late.promise(lambda: tf.constant(2.0), tf.constant([], tf.int32), tf.constant(0.0), "known").numpy() == 2
    sources = []

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with late.step() as returned:
            promised = late.promise(lambda: tf.constant([2.0]), tf.constant([1]), tf.constant(0.0), "known")
            sources.append(late.source_of(tf.cast(promised, tf.float64)))
            returned.append(promised)
        return promised

    assert step().numpy().tolist() == [2]
    assert sources == ["known" if may_wait else None]


def logits(part: tf.Tensor) -> Logits:
    """Return logits of which one member has all."""
    axes = Axes(
        Mesh((("model", 1),)),
        0,
        {"model": TracedCollective(LocalCollective(), bucket_bytes=1 << 20)},
        lambda what: contextlib.nullcontext(),
    )
    return Logits(part, Along(axes, "model", "activations of last/kernel"))


def test_a_source_is_known_behind_each_output_of_an_identity() -> None:
    late, sources = Late(may_wait=True), []

    @tf.function(autograph=False)
    def step() -> tf.Tensor:
        with late.step() as returned:
            promised = late.promise(lambda: tf.constant([2.0]), tf.constant([1]), tf.constant(0.0), "known")
            first, second = tf.identity_n([tf.constant([1.0]), promised])  # as a user's gradient of several results
            sources.extend([late.source_of(first), late.source_of(second)])
            returned.append(second)
        return second

    step()
    assert sources == [None, "known"]


def test_the_loss_of_all_parts_is_that_of_keras() -> None:
    rng = np.random.RandomState(3)
    part, target = tf.constant(rng.normal(size=(4, 3, 7)) * 30), tf.constant(rng.randint(0, 7, (4, 3)))
    upstream = tf.constant(rng.normal(size=(4, 3)))
    found = []
    for loss in (
        lambda: logits(part).crossentropy(target, tf.float64),
        lambda: keras.ops.sparse_categorical_crossentropy(target, part, from_logits=True),
    ):
        with tf.GradientTape() as tape:
            tape.watch(part)
            value = loss()
        found.append((value, tape.gradient(value, part, output_gradients=upstream)))
    for ours, theirs in zip(*found, strict=True):
        tf.debugging.assert_near(ours, theirs, rtol=1e-12, atol=1e-12)
    assert logits(part).best().numpy().tolist() == tf.argmax(part, axis=-1).numpy().tolist()


def test_the_loss_is_a_number_where_a_member_has_no_word_that_is_possible() -> None:
    part, other = tf.fill([2, 3], -np.inf), np.zeros([2, 3], "float32")

    class Members:
        """The first of two members; the second one has the other logits, and the target."""

        size, place, label = 2, 0, "activations of last/kernel"

        def all(self, mine: tf.Tensor) -> tf.Tensor:
            return tf.stack([mine, tf.constant([[0.0, 0.0], [3.0, 3.0], [0.0, 0.0]])])

    with tf.GradientTape() as tape:
        tape.watch(part)
        loss = Logits(part, cast(Along, Members())).crossentropy(tf.constant([3, 5], tf.int64), tf.float32)
    wanted = keras.ops.sparse_categorical_crossentropy([3, 5], tf.concat([part, other], axis=1), from_logits=True)
    tf.debugging.assert_near(loss, wanted)
    assert not np.any(tape.gradient(loss, part))


@pytest.mark.parametrize("target", [-1, 7])
def test_a_target_that_is_no_class_is_an_error(target: int) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError) as raised:
        logits(tf.zeros([2, 7])).crossentropy(tf.constant([0, target], tf.int64), tf.float32)
    message = str(raised.value)
    assert "target is no class" in message
    assert re.search(rf"\b6\b(?s:.*){target}\b", message)
