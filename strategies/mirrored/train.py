"""Train a residual network in mixed precision on all devices of one process, with batch normalization over all of them.

tfdist run --strategy mirrored strategies/mirrored/train.py                            # every GPU
tfdist run --strategy mirrored --replicas-per-worker 2 strategies/mirrored/train.py    # two; logical CPUs without GPUs

GPUs multiply 16-bit matrices several times faster than float32, and activations take half of the memory. Variables stay
float32.
"""

import argparse
from pathlib import Path

import keras

import tfdist
from tfdist.testing import digits, recipe_report

POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(digits.SEED)
    keras.config.set_dtype_policy(options.precision)
    data, batch = digits.write_digits(), options.batch_size  # three folders of TFRecords, written once
    train = tfdist.data.read(data / "train", global_batch_size=batch, seed=digits.SEED, tail="keep")
    validation = tfdist.data.read(data / "validation", global_batch_size=batch, order="none", tail="keep")
    test = tfdist.data.read(data / "test", global_batch_size=batch, order="none", tail="keep")

    with strategy.scope():
        model = build_model(options.width)
        learning_rate = keras.optimizers.schedules.CosineDecay(4e-3, decay_steps=options.epochs * train.steps_per_epoch)
        optimizer = keras.optimizers.AdamW(learning_rate, weight_decay=0.05, global_clipnorm=1.0)
        # under mixed_float16 `compile` wraps the optimizer in a dynamic loss scale, which all replicas share
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


def build_model(width: int) -> keras.Model:
    """Return a residual network, not compiled, whose statistics are those of the global batch.

    Without `synchronized` each device would normalize its own part of the batch. The model would then depend on the
    number of devices, and be worse with few examples on each.
    """
    layers = keras.layers

    def normalized(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
        x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(synchronized=True, momentum=0.9)(x)

    images = keras.Input((8, 8, 1))
    x = layers.ReLU()(normalized(images, width))
    for filters in (width, 2 * width):
        inner = normalized(layers.ReLU()(normalized(x, filters)), filters)
        x = layers.ReLU()(inner + layers.Conv2D(filters, 1)(x))
        x = layers.MaxPooling2D()(x)
    x = layers.Dropout(0.2)(layers.GlobalAveragePooling2D()(x))
    logits = layers.Dense(10)(x)
    return keras.Model(images, layers.Activation("softmax", dtype="float32")(logits), name="residual")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size; default: %(default)s")
    parser.add_argument("--precision", choices=POLICIES, default="mixed_bfloat16", help="default: %(default)s")
    parser.add_argument("--width", type=int, default=32, help="filters of the first block; default: %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        default="runs/mirrored",
        help="folder for the loss curves and the summary; default: %(default)s",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
