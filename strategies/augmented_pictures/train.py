"""Train on pictures that are turned, moved and scaled anew in each epoch, in large batches.

python strategies/augmented_pictures/train.py
tfdist run --strategy multi-worker -n 2 strategies/augmented_pictures/train.py
tfdist run --strategy multi-worker -n 2 strategies/augmented_pictures/train.py --plain    # unchanged pictures

The pictures are the handwritten digits of scikit-learn, enlarged to 24x24. The changes of a picture follow from seed,
epoch and example, so any number of workers trains on the same pictures.
"""

import argparse

import keras
import tensorflow as tf

import tfdist
from tfdist.optimizers import Warmup
from tfdist.testing import digits

SIZE = 24


def enlarged(example: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
    return {**example, "image": tf.image.resize(example["image"], [SIZE, SIZE])}


def moved(example: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
    """Turn a picture by at most 20 degrees, scale it by at most an eighth and move it by at most 3 pixels."""
    turn, scale, down, right = tf.unstack(tf.random.stateless_uniform([4], seed, -1.0, 1.0))
    cosine, sine = (function(0.35 * turn) * (1 + scale / 8) for function in (tf.cos, tf.sin))
    middle = (SIZE - 1) / 2
    across = middle - cosine * middle + sine * middle + 3 * right
    along = middle - sine * middle - cosine * middle + 3 * down
    transform = tf.stack([cosine, -sine, across, sine, cosine, along, 0.0, 0.0])
    picture = tf.raw_ops.ImageProjectiveTransformV3(
        images=example["image"][tf.newaxis],
        transforms=transform[tf.newaxis],
        output_shape=[SIZE, SIZE],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )
    return {**example, "image": picture[0]}


def build() -> keras.Model:
    layers = keras.layers
    blocks = [
        layer
        for filters in (16, 32, 64)
        for layer in (layers.Conv2D(filters, 3, padding="same", activation="relu"), layers.MaxPooling2D())
    ]
    return keras.Sequential([keras.Input((SIZE, SIZE, 1)), *blocks, layers.Flatten(), layers.Dense(10)])


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(digits.SEED)
    folder = digits.write_digits()
    how = {"global_batch_size": options.batch_size, "decode": enlarged}
    augment = None if options.plain else moved
    train = tfdist.data.read(folder / "train", seed=digits.SEED, tail="keep", augment=augment, **how)
    test = tfdist.data.read(folder / "test", order="none", tail="keep", **how)
    turned = tfdist.data.read(folder / "test", seed=digits.SEED, order="none", tail="keep", augment=moved, **how)
    steps = options.epochs * train.steps_per_epoch
    with strategy.scope():
        model = build()
        rate = Warmup(keras.optimizers.schedules.CosineDecay(options.learning_rate, max(1, steps)), steps=steps // 10)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Lamb(rate), loss, metrics=["accuracy"])
    history = model.fit(train, shuffle=False, epochs=options.epochs, verbose=2).history
    as_written, when_moved = (model.evaluate(part, verbose=0)[1] for part in (test, turned))
    if tfdist.cluster.from_environment().is_chief:
        print(f"steps                {int(model.optimizer.iterations.numpy())} of {options.batch_size} pictures")
        print("losses              ", *(f"{loss:.5f}" for loss in history["loss"][:: max(1, options.epochs // 5)]))
        print(f"test accuracy        {as_written:.4f}, and {when_moved:.4f} of moved pictures", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="do not change the pictures")
    parser.add_argument("--epochs", type=int, default=30, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=256, help="global batch size; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=0.02, help="highest rate of Lamb; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
