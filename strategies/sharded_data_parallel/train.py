"""Train a wide network whose optimizer slots are larger than its weights; each worker holds its part of the slots.

tfdist run --strategy sharded-data-parallel -n 2 strategies/sharded_data_parallel/train.py
TFDIST_SHARDING_STAGE=2 tfdist run --strategy sharded-data-parallel -n 2 strategies/sharded_data_parallel/train.py

With --accumulate-steps K an update is made from K batches; under stage 2 a worker keeps only its part of their sum.
Under any other strategy, and without one, the same script trains to the same weights, with whole slots.
"""

import argparse
from pathlib import Path

import keras
import numpy as np

import tfdist
from tfdist.callbacks import BackupAndRestore
from tfdist.optimizers import DistributedOptimizer
from tfdist.testing import digits, recipe_report


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(digits.SEED)
    data, batch = digits.write_digits(), options.batch_size  # three folders of TFRecords, written once
    train = tfdist.data.read(data / "train", global_batch_size=batch, seed=digits.SEED, tail="keep")
    validation = tfdist.data.read(data / "validation", global_batch_size=batch, order="none", tail="keep")
    test = tfdist.data.read(data / "test", global_batch_size=batch, order="none", tail="keep")

    with strategy.scope():
        model = build_model(options.width)
        updates = options.epochs * train.steps_per_epoch // options.accumulate_steps
        learning_rate = keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=max(1, updates))
        optimizer = keras.optimizers.AdamW(learning_rate, weight_decay=0.05, global_clipnorm=1.0)
        if options.accumulate_steps > 1:
            optimizer = DistributedOptimizer(optimizer, accumulate_steps=options.accumulate_steps)
        model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    clock = recipe_report.EpochClock(len(train.examples))
    backup = BackupAndRestore(options.output / "backup", save_freq=200)  # each worker's part, and the shared state
    history = model.fit(
        train,
        shuffle=False,  # `read` has shuffled: every epoch has an order of its own
        epochs=options.epochs,
        validation_data=validation,
        callbacks=[clock, backup],
        verbose=2,
    ).history
    weights, slots = (megabytes(variables) for variables in (model.weights, model.optimizer.variables))
    print(f"this process holds {weights:.1f} MB of weights and {slots:.1f} MB of the optimizer's variables")
    options.output.mkdir(parents=True, exist_ok=True)
    model.save(options.output / "model.keras")  # whole slots; all workers call it, and the chief writes
    recipe_report.conclude(model, strategy, test, history=history, clock=clock, folder=options.output)


def build_model(width: int) -> keras.Model:
    """Return a wide perceptron, not compiled."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            layers.Flatten(),
            layers.Dense(width, activation="relu"),
            layers.LayerNormalization(),
            layers.Dense(width, activation="relu"),
            layers.LayerNormalization(),
            layers.Dense(10, activation="softmax"),
        ],
        name="wide",
    )


def megabytes(variables: list[keras.Variable]) -> float:
    return sum(np.asarray(variable).nbytes for variable in variables) / 1e6


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size; default: %(default)s")
    parser.add_argument("--width", type=int, default=1024, help="units of each layer; default: %(default)s")
    parser.add_argument("--accumulate-steps", type=int, default=1, help="batches in an update; default: %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        default="runs/sharded_data_parallel",
        help="folder for backups, the model, loss curves and the summary; default: %(default)s",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
