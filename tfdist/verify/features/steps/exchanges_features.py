"""Steps of one's own that need the examples, or the gradients, of all replicas in their middle."""

from collections.abc import Callable
from typing import Any

import tfdist.training
from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import PARTIAL, WIDTH, dense, history, regression, sgd, variables


def _fitted(
    ctx: Context, step: Callable[[Any, Any, Any], dict[str, Any]], optimizers: Callable[[], list[Any]]
) -> Outcome:
    """Train a model and a second network in batches of 12, 12, 12 and 5, by a step; return logs and weights."""

    class Own(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            return step(self, *data)

    with ctx.scope():
        used = optimizers()
        inner = dense(outputs=3)
        model = Own(inner.inputs, inner.outputs)
        model.second = dense()
        model.compile(used[0])
        model.optimizers = used
    result = model.fit(*regression(PARTIAL), batch_size=12, epochs=2, shuffle=False, verbose=0)
    return {**history(result), **variables(ctx, model.weights, "weights")}


def _gradients(network: Any, weights: Any, x: Any, y: Any) -> tuple[list[Any], Any]:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(network(x, training=True) - y))
    return tape.gradient(loss, weights), loss


def _own(model: Any) -> list[Any]:
    others = {id(weight) for weight in model.second.trainable_variables}
    return [weight for weight in model.trainable_variables if id(weight) not in others]


@feature()
def gathered_candidates(ctx: Context) -> Outcome:
    """A contrastive loss whose candidates are gathered from all replicas."""

    def step(model: Any, x: Any, y: Any) -> dict[str, Any]:
        replica = tf.distribute.get_replica_context()
        number = replica.replica_id_in_sync_group
        owners = replica.all_gather(tf.fill(tf.shape(x)[:1], number), axis=0)
        places = tf.where(tf.equal(owners, number))[:, 0]
        with tf.GradientTape() as tape:
            candidates = replica.all_gather(model(x + 0.1 * y, training=True), axis=0)
            similar = 2.0 * tf.matmul(model(x, training=True), candidates, transpose_b=True)
            similar, places = similar[: tf.size(places)], places[: tf.shape(x)[0]]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(places, similar))
        weights = _own(model)
        model.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"contrast": loss}

    return _fitted(ctx, step, lambda: [sgd(learning_rate=0.02)])


@feature()
def norms_in_a_step(ctx: Context) -> Outcome:
    """Reduced gradients that are clipped by their global norm, which is logged."""

    def step(model: Any, x: Any, y: Any) -> dict[str, Any]:
        weights = model.second.trainable_variables
        gradients, loss = _gradients(model.second, weights, x, y)
        gradients, norm = tf.clip_by_global_norm(tfdist.training.reduced_gradients(gradients), 0.3)
        model.optimizer.apply(gradients, weights)
        return {"value": loss, "norm": norm}

    return _fitted(ctx, step, lambda: [keras.optimizers.Adam(0.02, epsilon=1e-3)])


@feature()
def sharpness_aware_minimization(ctx: Context) -> Outcome:
    """SAM: weights moved along their reduced gradient, a gradient there, and the weights moved back."""

    def step(model: Any, x: Any, y: Any) -> dict[str, Any]:
        weights = model.second.trainable_variables
        first = tfdist.training.reduced_gradients(_gradients(model.second, weights, x, y)[0])
        norm = tf.linalg.global_norm(first)
        moves = [0.1 * gradient / (norm + 1e-12) for gradient in first]
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_add(move)
        second, loss = _gradients(model.second, weights, x, y)
        for weight, move in zip(weights, moves, strict=True):
            weight.assign_sub(move)
        model.optimizer.apply(second, weights)
        return {"value": loss}

    return _fitted(ctx, step, lambda: [sgd(learning_rate=0.05)])


@feature()
def adversaries_that_clip(ctx: Context) -> Outcome:
    """A GAN of two optimizers, whose step clips the reduced gradients of both networks."""

    def step(model: Any, x: Any, y: Any) -> dict[str, Any]:
        critic, maker = model.optimizers
        logs: dict[str, Any] = {}
        for optimizer, weights, sign in ((critic, model.second.trainable_variables, 1.0), (maker, _own(model), -1.0)):
            with tf.GradientTape() as tape:
                made = model(x, training=True)
                fake = tf.concat([made, x[:, : WIDTH - 3]], axis=1)
                loss = sign * tf.reduce_mean(tf.tanh(model.second(x)) - tf.tanh(model.second(fake)))
            gradients = tfdist.training.reduced_gradients(tape.gradient(loss, weights))
            gradients, norm = tf.clip_by_global_norm(gradients, 0.2)
            optimizer.apply(gradients, weights)
            logs |= {f"{optimizer.name} norm": norm, f"{optimizer.name} value": loss}
        return logs

    return _fitted(ctx, step, lambda: [sgd(learning_rate=0.05, name=name) for name in ("critic", "maker")])
