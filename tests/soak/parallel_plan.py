"""Predicted steps beside measured ones: four models, on one device, data parallel and as a pipeline of two stages.

    python -m tests.soak.parallel_plan

Each worker has one thread. Predicted and measured are seconds of a worker's processor in a step, so other programs are
in neither; what a stage waits for others is no part of them either. The blocks of steps of the strategies take turns.
"""

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from tfdist.cluster.ports import free_ports
from tfdist.launch.pool.environment import worker_environments
from tfdist.launch.pool.pool import WorkerPool
from tfdist.parallel.partition.devices import DeviceKind
from tfdist.parallel.partition.link import Link
from tfdist.parallel.partition.profile import Profile
from tfdist.parallel.partition.search import best_stages
from tfdist.parallel.partition.stages import Setting, Stage
from tfdist.parallel.partition.step_time import predict

PLANS = ("one device", "data 2", "pipeline 2")
MODELS = ("dense", "convolutions", "residual", "transformer")
DEADLINE_SECONDS = 1500.0
STEPS, BLOCKS, MICROBATCHES = 4, 5, 4
SIZES = (4 << 10, 4 << 20)


def made(name: str) -> tuple[Any, Any, Any]:
    """Return a model that is compiled, and a batch for it."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(3)
    layers = keras.layers
    draw = np.random.default_rng(3)
    if name == "dense":
        model = keras.Sequential(
            [keras.Input((784,)), *(layers.Dense(1024, "relu") for _ in range(4)), layers.Dense(10)]
        )
        x, classes = draw.normal(size=(128, 784)), 10
    elif name == "transformer":
        sys.path.insert(0, str(Path(__file__).parents[2] / "strategies" / "transformer"))
        from train import gpt

        model, x, classes = gpt(64, 2, 128, 4, 0.1), draw.integers(96, size=(32, 64)), 96
    else:
        inputs = values = keras.Input((28, 28, 1))
        for filters in (16, 32, 32, 32):
            values = layers.Conv2D(filters, 3, padding="same", strides=2 if filters == 16 else 1)(values)
            if name == "residual":
                inner = layers.Activation("relu")(layers.BatchNormalization()(values))
                values = values + layers.Conv2D(filters, 3, padding="same")(inner)
            else:
                values = layers.Activation("relu")(values)
        model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling2D()(values)))
        x, classes = draw.normal(size=(64, 28, 28, 1)), 10
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = x if x.dtype.kind == "i" else x.astype("float32")
    y = draw.integers(classes, size=x.shape[: 2 if name == "transformer" else 1])
    return model, x, y


_trained: dict[tuple[str, str], Any] = {}


def block(name: str, stages: str | None) -> float:
    """Return the processor's seconds of a step, of some steps; called by all workers of a job."""
    import keras
    import numpy as np

    import tfdist

    if (name, stages or "") not in _trained:
        keras.utils.clear_session()  # names of layers are those of the profile
        if stages is None and os.environ.get("TFDIST_STRATEGY") is None:
            strategy = None
        elif stages is None:
            strategy = tfdist.strategies.from_environment()
        else:
            options = {"stages": json.loads(stages), "microbatches": MICROBATCHES, "mesh": "pipeline=2"}
            strategy = tfdist.strategies.create("pipeline", **options)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model, x, y = made(name)
        model.fit(x, y, batch_size=len(x), verbose=0)
        _trained[name, stages or ""] = model, x, y
    model, x, y = _trained[name, stages or ""]
    many = [np.concatenate([one] * (STEPS + 1)) for one in (x, y)]
    ends: list[float] = []
    told = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs=None: ends.append(time.process_time()))
    model.fit(*many, batch_size=len(x), callbacks=[told], verbose=0)
    return (ends[-1] - ends[0]) / STEPS


def measured_profile(name: str) -> str:
    """Return the profile of a model."""
    import keras

    from tfdist.parallel.partition.measuring import profile
    from tfdist.tune.probe import trainer

    keras.utils.clear_session()
    model, x, y = made(name)
    rows = len(x)
    in_fit = trainer(model, type(model).fit, time.process_time)
    sizes = [rows // 2, rows // MICROBATCHES]
    return profile(model, (x, y), batch_sizes=sizes, in_fit=in_fit, clock=time.process_time).to_json()


def line() -> list[float]:
    """Return the processor's seconds of an all_reduce of each of `SIZES`."""
    import tensorflow as tf

    import tfdist

    strategy: Any = tfdist.strategies.from_environment()
    found = []
    for size in SIZES:
        ones, times = tf.ones([size // 4]), []
        for _ in range(9):
            began = time.process_time()
            strategy.workers.collective.all_reduce([ones], key="line")[0].numpy()
            times.append(time.process_time() - began)
        found.append(statistics.median(times[1:]))
    return found


def pool(workers: int, strategy: str | None) -> WorkerPool:
    """Return workers of one thread each."""

    def environments() -> list[dict[str, str]]:
        found = worker_environments(os.environ, strategy=strategy, ports=free_ports(workers), replicas_per_worker=1)
        return [{**one, "TF_NUM_INTEROP_THREADS": "1"} if workers == 1 else one for one in found]

    return WorkerPool(environments)


def called(workers: WorkerPool, function: str, **arguments: Any) -> list[Any]:
    """Return what each worker returns."""
    replies = workers.call(f"tests.soak.parallel_plan:{function}", arguments, timeout_seconds=DEADLINE_SECONDS)
    wrong = [one for one in replies if one.status != "returned"]
    if wrong:
        raise SystemExit(f"{wrong[0].message}\n{wrong[0].detail}")
    return [one.value for one in replies]


def main() -> None:
    """Print a line for each model and plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--plans", nargs="+", choices=PLANS, default=PLANS)
    options = parser.parse_args()
    begun = os.getloadavg()[0]
    with pool(1, None) as alone, pool(2, "multi-worker") as several:
        few, many = (max(pair) for pair in zip(*called(several, "line"), strict=True))
        link = Link.of_all_reduces((SIZES[0], few), (SIZES[1], many))
        sys.stdout.write(
            f"{link}\n| model | plan | predicted, ms | measured, ms | predicted / measured |\n|---|---|---|---|---|\n"
        )
        for name in options.models:
            (text,) = called(alone, "measured_profile", name=name)
            profile = Profile.from_json(text)
            one, two = (DeviceKind(count=count) for count in (1, 2))
            common: dict[str, Any] = {"profile": profile, "link": link}
            single = Setting(kinds=(one,), replicas=1, **common)
            double = Setting(kinds=(two,), replicas=2, **common)
            whole = Stage(begin=0, end=len(profile.layers))
            rows: dict[str, tuple[WorkerPool, str | None, list[float]]] = {
                "one device": (alone, None, [predict(single, [whole]).seconds]),
                "data 2": (several, None, [predict(double, [dataclasses.replace(whole, devices=2)]).seconds] * 2),
            }
            staged = Setting(kinds=(two,), replicas=1, microbatches=MICROBATCHES, **common)
            cut = best_stages(staged)
            if cut is not None:
                busy = [
                    MICROBATCHES * (staged.compute_seconds(stage) + sum(staged.sending_seconds(cut[1].begin)))
                    + staged.update_seconds(stage)
                    + profile.fixed_seconds
                    for stage in cut
                ]
                rows["pipeline 2"] = (several, json.dumps([profile.layers[cut[1].begin].name]), busy)
            rows = {plan: row for plan, row in rows.items() if plan in options.plans}
            times: dict[str, list[list[float]]] = {plan: [] for plan in rows}
            for _ in range(BLOCKS):
                for plan, (workers, stages, _) in rows.items():
                    times[plan].append(called(workers, "block", name=name, stages=stages))
            for plan, (_, _, predicted) in rows.items():
                for worker, foreseen in enumerate(predicted[:1] if plan == "data 2" else predicted):
                    taken = statistics.median(one[worker] for one in times[plan])
                    what = f"{plan}, stage {worker + 1}" if plan == "pipeline 2" else plan
                    ratio = f"{foreseen / taken:.2f}"
                    sys.stdout.write(f"| {name} | {what} | {1e3 * foreseen:.1f} | {1e3 * taken:.1f} | {ratio} |\n")
                    sys.stdout.flush()
    sys.stdout.write(f"load {begun:.1f} before, {os.getloadavg()[0]:.1f} after\n")


if __name__ == "__main__":
    main()
