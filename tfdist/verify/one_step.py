"""The comparison of a training step of two replicas with that of one device, for untested versions.

`tfdist/training/checks/untested.py` runs it with ``python -m`` in a process of its own. It exits with 0 if they agree;
else it prints the difference or the error, and exits with 1.
"""

import contextlib
import logging
import signal
import sys
from typing import Any

#: as in the matrix, for float32
TOLERANCE = 1e-5

_TIMEOUT_SECONDS = 600


def apart() -> dict[str, float]:
    import numpy as np

    from tfdist.strategies import MirroredStrategy, use_logical_cpus

    use_logical_cpus(2)
    one = _numbers(contextlib.nullcontext())
    two = _numbers(MirroredStrategy(["CPU:0", "CPU:1"]).scope())
    return {name: float(np.max(np.abs(one[name] - two[name]))) for name in one}


def _numbers(scope: Any) -> dict[str, Any]:
    """Train on two batches, the second partial and of an odd size, with an optimizer that clips the global norm."""
    import keras
    import numpy as np

    draw = np.random.RandomState(0)
    x, y = draw.normal(size=(9, 3)).astype(np.float32), draw.normal(size=(9, 1)).astype(np.float32)
    with scope:
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        weights = [draw.normal(size=weight.shape) for weight in model.get_weights()]
        model.compile(keras.optimizers.Adam(0.1, global_clipnorm=0.5), "mse", metrics=["mae"])
    model.set_weights(weights)
    history = model.fit(x, y, batch_size=6, shuffle=False, verbose=0).history
    return {
        "weights": np.concatenate([weight.ravel() for weight in model.get_weights()]),
        "loss and metric of fit": np.array([history["loss"][-1], history["mae"][-1]]),
        "evaluate": np.array(model.evaluate(x, y, batch_size=6, verbose=0)),
        "predict": model.predict(x, batch_size=6, verbose=0),
    }


def main() -> int:
    signal.alarm(_TIMEOUT_SECONDS)  # the process that started this one may have been killed
    logging.getLogger("tensorflow").setLevel(logging.ERROR)
    try:
        found = apart()
    except Exception as error:  # noqa: BLE001 - whatever a version that was not tested raises
        found, said = {}, f"{type(error).__name__}: {error}"
    else:
        wrong = {name: by for name, by in found.items() if not by <= TOLERANCE}
        said = ", ".join(f"{name}: apart by {by:.3g}" for name, by in wrong.items())
    if said:
        sys.stdout.write(f"{said}\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
