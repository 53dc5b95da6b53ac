"""The peers' part of a turn: `python peer_side.py keras_tuner|ray_tune JSON`, in an environment that has them."""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = str(Path(__file__).parents[2])
sys.path.insert(0, ROOT)


def keras_tuner(setup: dict[str, Any]) -> None:
    """Random search in this process, one trial after another over all cores; it saves the best epoch of each."""
    import keras_tuner as tuners

    from benchmarks.searches import digits_trial

    class Digits(tuners.HyperModel):
        def build(self, hp: Any) -> Any:
            return digits_trial.build(
                hp.Choice("units", list(digits_trial.UNITS)),
                hp.Float("dropout", *digits_trial.DROPOUT),
                hp.Float("rate", *digits_trial.RATE, sampling="log"),
            )

        def fit(self, hp: Any, model: Any, *args: Any, **known: Any) -> Any:
            found = model.fit(*args, **known)
            digits_trial.note(setup["ends"])
            return found

    with tempfile.TemporaryDirectory() as folder:
        tuner = tuners.RandomSearch(
            Digits(), objective="val_accuracy", max_trials=setup["trials"], seed=setup["seed"], directory=folder
        )
        tuner.search(**digits_trial.read(setup["data"]), epochs=setup["epochs"], verbose=0)


def ray_tune(setup: dict[str, Any]) -> None:
    """Random search in as many actors as there are slots, which take trial after trial; it saves nothing."""
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_raylet_start_wait_time_s="600")

    import ray
    from ray import tune

    def train(config: dict[str, Any]) -> None:
        import keras

        from benchmarks.searches import digits_trial

        class Told(keras.callbacks.Callback):
            def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
                tune.report({"val_accuracy": (logs or {})["val_accuracy"]})

        keras.backend.clear_session()
        model = digits_trial.build(**config)
        model.fit(**digits_trial.read(setup["data"]), epochs=setup["epochs"], callbacks=[Told()], verbose=0)
        digits_trial.note(setup["ends"])

    from benchmarks.searches import digits_trial

    variables = {"PYTHONPATH": ROOT, "TF_NUM_INTRAOP_THREADS": "1"}
    ray.init(num_cpus=setup["slots"], include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": variables})
    space = {
        "units": tune.choice(list(digits_trial.UNITS)),
        "dropout": tune.uniform(*digits_trial.DROPOUT),
        "rate": tune.loguniform(*digits_trial.RATE),
    }
    with tempfile.TemporaryDirectory() as folder:
        tuner = tune.Tuner(
            train,
            param_space=space,
            tune_config=tune.TuneConfig(
                num_samples=setup["trials"], metric="val_accuracy", mode="max", reuse_actors=True
            ),
            run_config=tune.RunConfig(storage_path=folder, verbose=0),
        )
        found = tuner.fit()
        if found.errors:
            raise SystemExit(f"{len(found.errors)} trials of Ray's have failed: {found.errors[0]}")
    ray.shutdown()


if __name__ == "__main__":
    what, given = sys.argv[1], json.loads(sys.argv[2])
    begun = time.time()
    {"keras_tuner": keras_tuner, "ray_tune": ray_tune}[what](given)
    Path(given["into"]).write_text(json.dumps(time.time() - begun), encoding="utf-8")
