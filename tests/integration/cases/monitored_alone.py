"""Trainings with `tfdist.callbacks.Monitor`, without the launcher: in a scope, twice, and in none.

python monitored_alone.py FOLDER EXPORTER ...
"""

import json
import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist
from tfdist.callbacks import Monitor
from tfdist.monitor.process_clock import recorder, step_clock
from tfdist.monitor.recording import row_ring
from tfdist.monitor.recording.rows import NORM_EVERY
from tfdist.monitor.verdict.alerts import Alert
from tfdist.monitor.verdict.step_parts import timeline

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)
FOLDER, EXPORTERS = Path(sys.argv[1]), sys.argv[2:]
STEPS, EPOCHS = 16, 2
random = np.random.default_rng(0)
x, y = random.normal(size=(4 * STEPS, 4)).astype("float32"), random.normal(size=4 * STEPS)


def trained(name: str, scope: bool, epochs: int = EPOCHS, **options: object) -> None:
    """Train, and write down what the callback says and what the weights are."""
    keras.utils.set_random_seed(1)
    strategy = tfdist.strategies.MirroredStrategy() if scope else None
    with strategy.scope() if strategy is not None else keras.name_scope("plain"):
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    found = []
    warns = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, logs: epoch or step_clock().warn("of the step"))
    for one in (Monitor(**{"verbose": False, **options}), None):
        monitors = [warns] if one is None else [one, warns]
        model.set_weights([np.ones_like(weight) for weight in model.get_weights()])
        model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, shuffle=False, callbacks=monitors)
        found.append([weight.tolist() for weight in model.get_weights()])
        if one is not None:
            (FOLDER / f"{name}.json").write_text(json.dumps(one.verdict))
    assert found[0] == found[1], "training is another with the callback"
    assert recorder() is None, "a recorder is left"
    assert not step_clock().observers, "an observer is left"


trained("scope", True, every=5, exporters=EXPORTERS, trace=FOLDER / "trace.json")
trained("again", True, epochs=1, verbose=True)
trained("plain", False)


def flops_of_a_training() -> None:
    """Train on two replicas, with a smaller last batch."""
    with tfdist.strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    monitor = Monitor(verbose=False, peak_flops=1e9)
    model.fit(x[:62], y[:62], batch_size=4, epochs=EPOCHS, verbose=0, callbacks=[monitor])
    seconds = float(monitor.verdict[2].partition("% of a step: ")[2].partition(" ms")[0]) / 1e3
    per_step = 3 * 4 * (2 * 4 * 8 + 2 * 8 * 1)
    assert monitor.model_flops_per_second is not None
    np.testing.assert_allclose(monitor.model_flops_per_second, per_step / seconds, rtol=0.06)  # it is rounded there
    assert monitor.model_flops_utilization == monitor.model_flops_per_second / 2e9
    monitor.flops = False
    model.fit(x[:8], y[:8], batch_size=4, verbose=0, callbacks=[monitor])
    assert monitor.verdict
    assert monitor.model_flops_per_second is monitor.model_flops_utilization is None, "they are of the fit before"


flops_of_a_training()


def alerts_of_a_loss_that_is_no_number() -> list[tuple[str, int | None]]:
    """Train until the loss is NaN; return what the callback was told, whose error is no end of the training."""
    told = []

    def on_alert(alert: Alert) -> None:
        told.append((str(alert.kind), alert.worker))
        raise ValueError("of the user's function")

    with tfdist.strategies.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(1e6), "mse")
    epochs = -(-4 * NORM_EVERY // STEPS)  # in which three norms are measured
    model.fit(x, y, batch_size=4, epochs=epochs, verbose=0, callbacks=[Monitor(verbose=False, on_alert=on_alert)])
    return told


def recorded_norms(scaled: bool) -> np.ndarray:
    """Train with a rate of 0, so that the gradient stays; return the norms that were recorded."""
    found = []

    class Reads(keras.callbacks.Callback):
        def on_train_end(self, logs: object = None) -> None:
            writes = recorder()
            assert writes is not None
            writes.flush()
            found.append(timeline({0: row_ring.read(writes.path)}).gradient_norm[:, 0])

    with tfdist.strategies.MirroredStrategy().scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, kernel_initializer="ones")])
        sgd = keras.optimizers.SGD(0.0, global_clipnorm=1e-3)  # what is recorded is not clipped yet
        model.compile(keras.optimizers.LossScaleOptimizer(sgd, 1024.0) if scaled else sgd, "mse")
    model.fit(
        x[:4], y[:4], batch_size=4, epochs=2 * NORM_EVERY + 1, verbose=0, callbacks=[Reads(), Monitor(verbose=False)]
    )
    return found[0][~np.isnan(found[0])]


errors = 2 * (x[:4].sum(axis=1) - y[:4]) / 4
expected = np.linalg.norm([*(errors @ x[:4]), errors.sum()])
for scaled in (False, True):
    norms = recorded_norms(scaled)
    assert len(norms) == 2, norms  # without that of the step that was traced
    np.testing.assert_allclose(norms, expected, rtol=1e-4)
assert set(alerts_of_a_loss_that_is_no_number()) == {("loss_not_finite", None), ("gradient_not_finite", None)}
