"""Recognize the moving object in a video: frames of a handwritten digit that passes behind a fence, as a sequence.

python strategies/frames/train.py
tfdist run --strategy multi-worker -n 2 strategies/frames/train.py
tfdist run --strategy multi-worker -n 2 strategies/frames/train.py --frames 1    # a single frame, to compare

The digits are those of scikit-learn. A video is made when it is read. Its path follows from seed, epoch and example, so
any number of workers trains on the same videos, and each epoch has new ones.
"""

import argparse
from collections.abc import Callable

import keras
import tensorflow as tf

import tfdist
from tfdist.testing import digits

SIZE, DIGIT = 16, 8


def video(frames: int, share: float) -> Callable[..., dict[str, tf.Tensor]]:
    """Return a function that makes frames of an example: the moving digit, of which each frame shows some pixels."""

    def made(example: dict[str, tf.Tensor], seed: tf.Tensor) -> dict[str, tf.Tensor]:
        begin, end = tf.unstack(tf.random.stateless_uniform([2, 2], seed, 0.0, SIZE - DIGIT + 1.0))
        shown = tf.random.stateless_uniform([frames, DIGIT, DIGIT, 1], seed + 1) < share
        pictures = tf.where(shown, example["image"], 0.0)
        corners = tf.cast(begin + (end - begin) * tf.linspace(0.0, 1.0, frames)[:, tf.newaxis], tf.int32)

        def placed(pair: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
            picture, corner = pair
            return tf.image.pad_to_bounding_box(picture, corner[0], corner[1], SIZE, SIZE)

        whole = tf.map_fn(placed, (pictures, corners), fn_output_signature=tf.float32)
        return {"image": tf.ensure_shape(whole, [frames, SIZE, SIZE, 1]), "label": example["label"]}

    return made


def build(frames: int, filters: int) -> keras.Model:
    """Return a network that applies the same convolutions to each frame, and a GRU to their sequence."""
    layers = keras.layers
    each = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1)),
            layers.Conv2D(filters, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(2 * filters, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(4 * filters, "relu"),
        ]
    )
    sequence = [layers.TimeDistributed(each), layers.GRU(4 * filters), layers.Dense(10)]
    return keras.Sequential([keras.Input((frames, SIZE, SIZE, 1)), *sequence])


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(digits.SEED)
    folder = digits.write_digits()
    made = video(options.frames, options.share)
    how = {"global_batch_size": options.batch_size, "seed": digits.SEED, "tail": "keep", "augment": made}
    train = tfdist.data.read(folder / "train", **how)
    test = tfdist.data.read(folder / "test", order="none", **how)
    with strategy.scope():
        model = build(options.frames, options.filters)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(options.learning_rate, global_clipnorm=1.0), loss, metrics=["accuracy"])
    history = model.fit(train, shuffle=False, epochs=options.epochs, verbose=2).history
    tested = model.evaluate(test, verbose=0, return_dict=True)
    if tfdist.cluster.from_environment().is_chief:
        print(f"videos               {len(train.examples):,} of {options.frames} frames, others in each epoch")
        print("losses              ", *(f"{loss:.5f}" for loss in history["loss"][:: max(1, options.epochs // 5)]))
        print(f"test accuracy        {tested['accuracy']:.4f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=8, help="frames of a video; default: %(default)s")
    parser.add_argument("--share", type=float, default=0.35, help="share of visible pixels; default: %(default)s")
    parser.add_argument("--filters", type=int, default=16, help="first layer's filters; default: %(default)s")
    parser.add_argument("--epochs", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
