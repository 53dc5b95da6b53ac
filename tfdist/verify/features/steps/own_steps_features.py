"""Models with a train_step of their own, as the examples of Keras have them: several networks, optimizers, trackers."""

from typing import Any

from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import (
    PARTIAL,
    WIDTH,
    compiled,
    dense,
    history,
    of_kind,
    prefixed,
    regression,
    sgd,
    trained,
    variables,
)

LATENT = 2


def _network(inputs: int, outputs: int) -> Any:
    layers = keras.layers
    return keras.Sequential([keras.Input((inputs,)), layers.Dense(5, activation="tanh"), layers.Dense(outputs)])


@feature()
def variational_autoencoder(ctx: Context) -> Outcome:
    """A VAE without call: encoder, decoder, trackers named otherwise than the logs, an optimizer built in its step."""

    class Autoencoder(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder, self.decoder = _network(WIDTH, 2 * LATENT), _network(LATENT, WIDTH)
            self.total_loss_tracker = keras.metrics.Mean(name="total_loss")
            self.reconstruction_loss_tracker = keras.metrics.Mean(name="reconstruction_loss")
            self.kl_loss_tracker = keras.metrics.Mean(name="kl_loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.total_loss_tracker, self.reconstruction_loss_tracker, self.kl_loss_tracker]

        def call(self, inputs: Any) -> Any:
            return self.decoder(self.encoder(inputs)[:, :LATENT])

        def train_step(self, data: Any) -> dict[str, Any]:
            ops = keras.ops
            with tf.GradientTape() as tape:
                mean, log_variance = ops.split(self.encoder(data), 2, axis=-1)
                # In the place of random numbers, which replicas draw each for itself.
                sampled = mean + ops.exp(0.5 * log_variance) * ops.sin(100.0 * data[:, :LATENT])
                reconstruction = ops.mean(ops.sum(ops.square(data - self.decoder(sampled)), axis=-1))
                divergence = -0.5 * (1.0 + log_variance - ops.square(mean) - ops.exp(log_variance))
                divergence = ops.mean(ops.sum(divergence, axis=1))
                total = reconstruction + divergence
            gradients = tape.gradient(total, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.total_loss_tracker.update_state(total)
            self.reconstruction_loss_tracker.update_state(reconstruction)
            self.kl_loss_tracker.update_state(divergence)
            return {
                "loss": self.total_loss_tracker.result(),
                "reconstruction_loss": self.reconstruction_loss_tracker.result(),
                "kl_loss": self.kl_loss_tracker.result(),
            }

    with ctx.scope():
        model = Autoencoder()
        # The compiled loss has no targets here, so it cannot be built before the first step.
        model.compile(optimizer=sgd(learning_rate=0.02), loss="mse")
    return trained(ctx, model, regression(PARTIAL)[0])


def _adversaries(ctx: Context, model: Any, **fit: Any) -> Outcome:
    x, noise = regression(PARTIAL)[0], regression(PARTIAL, seed=3)[0][:, :LATENT]
    result = model.fit(x, noise, batch_size=12, epochs=2, shuffle=False, verbose=0, **fit)
    slots = [*model.d_optimizer.variables, *model.g_optimizer.variables]
    return {**history(result), **variables(ctx, model.weights, "weights"), **variables(ctx, slots, "optimizers")}


@feature()
def generative_adversarial_network(ctx: Context) -> Outcome:
    """A GAN without call: two optimizers that are built in the first step, one for each network."""

    class Adversaries(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.discriminator, self.generator = _network(WIDTH, 1), _network(LATENT, WIDTH)
            self.d_loss_tracker = keras.metrics.Mean(name="d_loss")
            self.g_loss_tracker = keras.metrics.Mean(name="g_loss")

        def compile(self, d_optimizer: Any, g_optimizer: Any, loss_fn: Any) -> None:
            super().compile()
            self.d_optimizer, self.g_optimizer, self.loss_fn = d_optimizer, g_optimizer, loss_fn

        @property
        def metrics(self) -> list[Any]:
            return [self.d_loss_tracker, self.g_loss_tracker]

        def train_step(self, data: Any) -> dict[str, Any]:
            real, noise = data
            ops, rows = keras.ops, keras.ops.shape(data[0])[0]
            both = ops.concatenate([self.generator(noise), real], axis=0)
            labels = ops.concatenate([ops.ones((rows, 1)), ops.zeros((rows, 1))], axis=0)
            with tf.GradientTape() as tape:
                d_loss = self.loss_fn(labels, self.discriminator(both))
            weights = self.discriminator.trainable_weights
            self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
            with tf.GradientTape() as tape:
                g_loss = self.loss_fn(ops.zeros((rows, 1)), self.discriminator(self.generator(noise)))
            weights = self.generator.trainable_weights
            self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
            self.d_loss_tracker.update_state(d_loss)
            self.g_loss_tracker.update_state(g_loss)
            return {"d_loss": self.d_loss_tracker.result(), "g_loss": self.g_loss_tracker.result()}

    with ctx.scope():
        model = Adversaries()
        model.compile(sgd(), keras.optimizers.Adam(0.01), keras.losses.BinaryCrossentropy(from_logits=True))
    return _adversaries(ctx, model)


@feature()
def gradient_penalty(ctx: Context) -> Outcome:
    """A WGAN-GP without call: two discriminator steps per generator step, and a gradient of a gradient."""

    class Wasserstein(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.discriminator, self.generator = _network(WIDTH, 1), _network(LATENT, WIDTH)

        def compile(self, d_optimizer: Any, g_optimizer: Any) -> None:
            super().compile()
            self.d_optimizer, self.g_optimizer = d_optimizer, g_optimizer

        def penalty(self, real: Any, made: Any) -> Any:
            ops = keras.ops
            between = real + ops.cos(real[:, :1]) * (made - real)
            with tf.GradientTape() as tape:
                tape.watch(between)
                predicted = self.discriminator(between, training=True)
            norm = ops.sqrt(ops.sum(ops.square(tape.gradient(predicted, [between])[0]), axis=1))
            return ops.mean((norm - 1.0) ** 2)

        def train_step(self, data: Any) -> dict[str, Any]:
            real, noise = data
            ops = keras.ops
            for _ in range(2):
                with tf.GradientTape() as tape:
                    made = self.generator(noise, training=True)
                    d_loss = ops.mean(self.discriminator(made)) - ops.mean(self.discriminator(real))
                    d_loss += 10.0 * self.penalty(real, made)
                weights = self.discriminator.trainable_variables
                self.d_optimizer.apply_gradients(zip(tape.gradient(d_loss, weights), weights, strict=True))
            with tf.GradientTape() as tape:
                g_loss = -ops.mean(self.discriminator(self.generator(noise, training=True)))
            weights = self.generator.trainable_variables
            self.g_optimizer.apply_gradients(zip(tape.gradient(g_loss, weights), weights, strict=True))
            return {"d_loss": d_loss, "g_loss": g_loss}

    with ctx.scope():
        model = Wasserstein()
        model.compile(sgd(learning_rate=0.01, momentum=0.5), sgd(learning_rate=0.01, momentum=0.5))
    return _adversaries(ctx, model)


@feature()
def gradient_of_a_vector(ctx: Context) -> Outcome:
    """A siamese network whose train_step takes the gradient of a loss per example, which is the sum over examples."""

    class Siamese(keras.Model):
        def __init__(self, network: Any) -> None:
            super().__init__()
            self.network = network
            self.loss_tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.loss_tracker]

        def train_step(self, data: Any) -> dict[str, Any]:
            ops, (anchor, target) = keras.ops, data
            with tf.GradientTape() as tape:
                near = ops.sum(ops.square(self.network(anchor) - self.network(ops.flip(anchor, axis=1))), axis=-1)
                far = ops.sum(ops.square(self.network(anchor) - target), axis=-1)
                loss = ops.maximum(near - far + 0.5, 0.0)
            gradients = tape.gradient(loss, self.network.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.network.trainable_weights, strict=True))
            self.loss_tracker.update_state(loss)
            return {"loss": self.loss_tracker.result()}

    with ctx.scope():
        model = Siamese(_network(WIDTH, 3))
        model.compile(optimizer=sgd(learning_rate=0.01))
    return trained(ctx, model, *regression(PARTIAL))


@feature()
def sums_in_a_step(ctx: Context) -> Outcome:
    """A train_step and a test_step whose loss, tracker and logs are sums over the batch, beside a mean."""

    class Summing(keras.Model):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.tracker = keras.metrics.Mean(name="total")

        def total(self, data: Any) -> tuple[Any, dict[str, Any]]:
            x, y = data
            off = keras.ops.square(y - self(x))
            total = keras.ops.sum(off)
            self.tracker.update_state(total)
            logs = {"tracked": self.tracker.result(), "sum": total, "mean": keras.ops.mean(off)}
            return total, {**logs, "rows": tf.shape(x)[0]}

        def train_step(self, data: Any) -> dict[str, Any]:
            with tf.GradientTape() as tape:
                total, logs = self.total(data)
            self.optimizer.apply(tape.gradient(total, self.trainable_variables), self.trainable_variables)
            return {**logs, "updates": self.optimizer.iterations}

        def test_step(self, data: Any) -> dict[str, Any]:
            return self.total(data)[1]

    model = compiled(ctx, lambda: of_kind(Summing), lambda: sgd(learning_rate=0.01), None)
    x, y = regression(PARTIAL)
    return trained(ctx, model, x, y, validation_data=(x[:17], y[:17]))


@feature()
def synchronized_normalization(ctx: Context) -> Outcome:
    """A user's steps with normalization by the global batch, each with two losses in turn: means, sums, both."""

    def normalized() -> Any:
        return keras.layers.BatchNormalization(momentum=0.5, synchronized=True)

    class Own(keras.Model):
        def __init__(self, *reductions: Any) -> None:
            super().__init__()
            self.network = dense(normalized())
            self.reductions = reductions

        def train_step(self, data: Any) -> dict[str, Any]:
            x, y = data
            for off, reduce in zip((keras.ops.square, keras.ops.tanh), self.reductions, strict=True):
                with tf.GradientTape() as tape:
                    loss = reduce(off(y - self.network(x, training=True)))
                self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
            return {"loss": loss}

    outcome: dict[str, Any] = {}
    mean, total = keras.ops.mean, keras.ops.sum
    for name, reductions in (("mean", (mean, mean)), ("sum", (total, total)), ("both", (mean, total))):
        with ctx.scope():
            model = Own(*reductions)
            model.compile(sgd(learning_rate=0.003 if total in reductions else 0.05))
        outcome |= prefixed(name, trained(ctx, model, *regression(PARTIAL)))
    return outcome
