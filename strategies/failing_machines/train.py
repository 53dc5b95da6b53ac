"""Predict which machines fail soon, from sensors with readings at uneven times and of different numbers.

python strategies/failing_machines/train.py
tfdist run --strategy multi-worker -n 2 strategies/failing_machines/train.py
tfdist run --strategy multi-worker -n 2 strategies/failing_machines/train.py --padded    # pad all to the longest

The machines are generated: wear grows with load and existing wear, and raises vibration, and temperature with a lag. A
batch has machines with similar numbers of readings, so that there is little padding.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import tfdist

SEED, SENSORS = 17, 4  # hours since the last reading, load, vibration, temperature
LENGTHS = [32, 64, 128, 256]
SOON, LONGEST = 100, 800  # hours


def machine(rng: np.random.Generator) -> tuple[np.ndarray, int]:
    """Return the readings of a machine up to some hour of its life, and whether it fails within the next 100 hours."""
    load = 0.5 + 0.3 * np.sin(np.arange(LONGEST) / rng.uniform(8, 30)) + 0.1 * rng.standard_normal(LONGEST)
    strength, wear, warm = rng.lognormal(0, 0.25), 0.0, 20.0
    history = np.zeros((LONGEST, 3))
    for hour, now in enumerate(load):
        wear += 3e-3 * np.exp(2.2 * wear / strength) * max(0.0, now) ** 2
        warm += 0.1 * (20 + 30 * now + 25 * wear - warm)
        history[hour] = now, np.exp(1.5 * wear) * (0.3 + now), warm
        if wear > 1.2 * strength:
            break
    life = hour + 1
    end = int(rng.integers(life // 3, life))
    gaps = rng.geometric(1 / rng.uniform(1.5, 12), size=256)
    hours = end - np.cumsum(gaps)[::-1]
    hours = hours[hours >= 0]
    noise = rng.standard_normal((len(hours), 3)) * (0.05, 0.15, 1.5)
    sensed = (history[hours] + noise - (0.5, 1.5, 45)) / (0.25, 1.0, 12)
    since = np.diff(hours, prepend=hours[:1])[:, np.newaxis] / 10
    return np.concatenate([since, sensed], axis=1).astype(np.float32), int(life - end <= SOON)


def fleet(count: int, seed: int) -> dict[str, list[np.ndarray] | np.ndarray]:
    rng = np.random.default_rng(seed)
    found = [one for one in (machine(rng) for _ in range(count)) if len(one[0])]
    return {"readings": [rows.reshape(-1) for rows, _ in found], "fails": np.array([fails for _, fails in found])}


def decode(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {**example, "readings": tf.reshape(example["readings"], [-1, SENSORS])}


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(SEED)
    folder = options.output / str(options.machines)
    for part, count, seed in (("train", options.machines, SEED), ("test", options.machines // 4, SEED + 1)):
        if not (folder / part / "manifest.json").exists():  # the folder alone may be of another worker that writes
            tfdist.data.write(fleet(count, seed), folder / part, label="fails", exists="keep")
    how = {"global_batch_size": options.batch_size, "decode": decode}
    lengths = {"readings": LENGTHS[-1] if options.padded else LENGTHS}
    bucket = None if options.padded else "readings"
    train = tfdist.data.read(folder / "train", seed=SEED, bucket_by=bucket, pad=lengths, **how)
    test = tfdist.data.read(folder / "test", order="none", pad=lengths, **how)
    with strategy.scope():
        layers = [keras.layers.Masking(), keras.layers.GRU(options.units), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((None, SENSORS)), *layers])
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        judges = [
            keras.metrics.AUC(from_logits=True, name="auc"),
            keras.metrics.BinaryAccuracy("accuracy", threshold=0),
        ]
        model.compile(keras.optimizers.Adam(options.learning_rate), loss, weighted_metrics=judges)
    history = model.fit(train, shuffle=False, epochs=options.epochs, verbose=2).history
    tested = model.evaluate(test, verbose=0, return_dict=True)
    if tfdist.cluster.from_environment().is_chief:
        lengths = np.array([len(example["readings"]) // SENSORS for example in train.examples])
        print(f"readings             {lengths.min()} to {lengths.max()} of {len(lengths):,} machines")
        print("losses              ", *(f"{loss:.5f}" for loss in history["loss"]))
        print(f"test                 AUC {tested['auc']:.4f}, accuracy {tested['accuracy']:.4f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--padded", action="store_true", help="pad all to the longest length")
    parser.add_argument("--machines", type=int, default=1000, help="machines for training; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=32, help="global batch size; default: %(default)s")
    parser.add_argument("--units", type=int, default=24, help="units of the GRU; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=5e-3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/failing_machines", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
