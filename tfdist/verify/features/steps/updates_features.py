"""Steps of one's own that update more than once, or use what they have updated."""

from typing import Any

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import PARTIAL, WIDTH, dense, history, regression, sgd, variables


def _fitted(ctx: Context, model: Any, optimizers: dict[str, Any]) -> Outcome:
    x, y = regression(PARTIAL)
    result = model.fit(x, y, batch_size=12, epochs=2, shuffle=False, verbose=0)
    logs = {
        name: value for name, value in history(result).items() if not name.endswith(("loss_scale", "skipped_steps"))
    }
    outcome = {**logs, **variables(ctx, model.weights, "weights")}
    for name, optimizer in optimizers.items():
        outcome |= variables(ctx, optimizer.variables, name)
    return outcome


@feature()
def gan_with_clipped_weights(ctx: Context) -> Outcome:
    """A WGAN that clips the critic's weights after each of two updates, with weight decay."""

    def rmsprop() -> Any:
        return keras.optimizers.RMSprop(0.02, epsilon=1e-3, weight_decay=0.1)

    class Gan(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.generator = dense(outputs=WIDTH)
            self.critic = dense(keras.layers.Dense(5, activation="tanh"))

        def compile(self) -> None:
            super().compile()
            self.d_optimizer, self.g_optimizer = rmsprop(), rmsprop()
            self.d_metric, self.g_metric = keras.metrics.Mean("d_loss"), keras.metrics.Mean("g_loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.d_metric, self.g_metric]

        def train_step(self, data: Any) -> dict[str, Any]:
            noise, y = data
            real = tf.concat([noise[:, :-1] + y, y], axis=1)
            for _ in range(2):
                with tf.GradientTape() as tape:
                    made = self.generator(noise, training=True)
                    loss = tf.reduce_mean(self.critic(made, training=True) - self.critic(real, training=True))
                weights = self.critic.trainable_variables
                self.d_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
                for weight in weights:
                    weight.assign(keras.ops.clip(weight, -0.3, 0.3))
                self.d_metric.update_state(loss, sample_weight=tf.shape(noise)[0])
            with tf.GradientTape() as tape:
                loss = -tf.reduce_mean(self.critic(self.generator(noise, training=True), training=True))
            weights = self.generator.trainable_variables
            self.g_optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            self.g_metric.update_state(loss, sample_weight=tf.shape(noise)[0])
            return {metric.name: metric.result() for metric in self.metrics}

    with ctx.scope():
        model = Gan()
        model.compile()
        model.d_optimizer.build(model.critic.trainable_variables)
        model.g_optimizer.build(model.generator.trainable_variables)
    return _fitted(ctx, model, {"critic": model.d_optimizer, "generator": model.g_optimizer})


def _own(ctx: Context, optimizer: Any, step: Any) -> Outcome:
    class Own(keras.Model):
        def train_step(self, data: Any) -> dict[str, Any]:
            return dict(step(self, *data))

    with ctx.scope():
        inner = dense()
        model = Own(inner.inputs, inner.outputs)
        model.target = dense()
        model.target.trainable = False
        model.compile(optimizer())
        model.optimizer.build(model.trainable_variables)
    return _fitted(ctx, model, {"optimizer": model.optimizer})


def _update(model: Any, x: Any, y: Any) -> Any:
    with tf.GradientTape() as tape:
        loss = model.optimizer.scale_loss(tf.reduce_mean(tf.square(model(x, training=True) - y)))
    weights = model.trainable_variables
    model.optimizer.apply(tape.gradient(loss, weights), weights)
    return loss


@feature()
def one_optimizer_twice(ctx: Context) -> Outcome:
    """One Adam with a global clipnorm and moving averages that is applied twice, to what it has left the first time."""

    def step(model: Any, x: Any, y: Any) -> Any:
        return {"first": _update(model, x, y), "second": _update(model, x, y)}

    def optimizer() -> Any:
        return keras.optimizers.Adam(0.02, epsilon=1e-3, global_clipnorm=0.5, use_ema=True, ema_overwrite_frequency=3)

    return _own(ctx, optimizer, step)


@feature()
def scaled_optimizer_twice(ctx: Context) -> Outcome:
    """A loss scale that grows between the two updates of a step."""

    def step(model: Any, x: Any, y: Any) -> Any:
        _update(model, x, y)
        _update(model, x, y)
        return {"scale": model.optimizer.dynamic_scale}

    def optimizer() -> Any:
        return keras.optimizers.LossScaleOptimizer(sgd(learning_rate=0.02), 64.0, dynamic_growth_steps=3)

    return _own(ctx, optimizer, step)


@feature()
def two_updates_of_one_tape(ctx: Context) -> Outcome:
    """Two gradients of one tape, at the same weights, applied one after the other."""

    def step(model: Any, x: Any, y: Any) -> Any:
        weights = model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            predicted = model(x, training=True)
            losses = tf.reduce_mean(tf.square(predicted - y)), tf.reduce_mean(tf.square(predicted + y))
        for loss in losses:
            model.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"first": losses[0], "second": losses[1]}

    return _own(ctx, sgd, step)


@feature()
def weights_after_the_update(ctx: Context) -> Outcome:
    """A step that computes a log from the weights that it has updated, and has other weights follow them."""

    def step(model: Any, x: Any, y: Any) -> Any:
        loss = _update(model, x, y)
        for target, weight in zip(model.target.weights, model.trainable_variables, strict=True):
            target.assign(0.9 * target + 0.1 * weight)
        after = tf.reduce_mean(tf.square(model(x, training=False) - y))
        return {"loss": loss, "after": after, "updates": tf.cast(model.optimizer.iterations, tf.float32)}

    return _own(ctx, sgd, step)
