"""Train the digits classifier under any strategy, which the command that starts the script chooses.

python strategies/digits/train.py                                             # all devices of this process
tfdist run --replicas-per-worker 1 strategies/digits/train.py                 # one device
tfdist run --strategy mirrored --replicas-per-worker 2 strategies/digits/train.py
tfdist run --strategy multi-worker -n 2 strategies/digits/train.py
tfdist run --strategy ring -n 2 strategies/digits/train.py
tfdist run --strategy parameter-server -n 2 --parameter-servers 2 strategies/digits/train.py
"""

import argparse
from pathlib import Path

import keras

import tfdist
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
        model = digits.build_model()
        learning_rate = keras.optimizers.schedules.CosineDecay(2e-3, decay_steps=options.epochs * train.steps_per_epoch)
        optimizer = keras.optimizers.AdamW(learning_rate, weight_decay=0.05, global_clipnorm=1.0)
        model.compile(optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])

    clock = recipe_report.EpochClock(len(train.examples))
    history = model.fit(
        train,
        shuffle=False,  # `read` has shuffled: every epoch has an order of its own
        epochs=options.epochs,
        validation_data=validation,
        callbacks=[clock],
        verbose=2,
    ).history
    recipe_report.conclude(model, strategy, test, history=history, clock=clock, folder=options.output)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size; default: %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        default="runs/digits",
        help="folder for the loss curves and the summary; default: %(default)s",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
