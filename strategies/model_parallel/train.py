"""Train a wide network whose weights are divided over the devices of a mesh.

tfdist run --strategy model-parallel -n 2 --mesh batch=1,model=2 strategies/model_parallel/train.py
tfdist run --strategy model-parallel -n 4 --mesh batch=2,model=2 strategies/model_parallel/train.py
tfdist run --strategy model-parallel --replicas-per-worker 4 --mesh batch=2,model=2 strategies/model_parallel/train.py

Each kernel and its optimizer slots are cut along the axis `model` of the mesh; examples are divided along the axis
`batch`. The numbers are those of one device, whatever the mesh. Under another strategy the same script trains with
whole weights.
"""

import argparse
from pathlib import Path

import keras

import tfdist
from tfdist.testing import digits, recipe_report

LAYOUTS = {".*hidden/kernel": (None, "model"), ".*hidden/bias": ("model",), ".*classes/kernel": ("model", None)}


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment(layout_map=LAYOUTS)
    keras.utils.set_random_seed(digits.SEED)
    data, batch = digits.write_digits(), options.batch_size  # three folders of TFRecords, written once
    train = tfdist.data.read(data / "train", global_batch_size=batch, seed=digits.SEED, tail="keep")
    validation = tfdist.data.read(data / "validation", global_batch_size=batch, order="none", tail="keep")
    test = tfdist.data.read(data / "test", global_batch_size=batch, order="none", tail="keep")

    with strategy.scope():
        layers = keras.layers
        image = keras.Input((8, 8, 1))
        wide = layers.Dense(options.units, activation="relu", name="hidden")(layers.Flatten()(image))
        model = keras.Model(image, layers.Dense(10, activation="softmax", name="classes")(wide))
        optimizer = keras.optimizers.Adam(options.learning_rate, global_clipnorm=1.0)
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
    if tfdist.cluster.from_environment().is_chief:
        tfdist.parallel.describe(model)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="default: %(default)s")
    parser.add_argument("--units", type=int, default=4096, help="units of the wide layer; default: %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        default="runs/model_parallel",
        help="folder for the loss curves and the summary; default: %(default)s",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
