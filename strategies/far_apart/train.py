"""Train over a slow network: workers meet seldom, and an outer optimizer makes a step from their progress.

tfdist run -n 2 strategies/far_apart/train.py
tfdist run -n 2 strategies/far_apart/train.py --every auto --fragments 5 --delay 2
tfdist run -n 2 --synchronization local-sgd:every=8 strategies/far_apart/train.py --from-environment

The data are the handwritten digits, which every machine has. The card has the measurements.
"""

import argparse
from pathlib import Path
from typing import Any

import keras

import tfdist
from tfdist.callbacks import BackupAndRestore
from tfdist.testing import digits

BATCH, SEED = 64, 17


def schedule(options: argparse.Namespace) -> tfdist.strategies.DiLoCo:
    """Return the schedule of meetings; the outer optimizer is a function, as TensorFlow has not started yet."""
    return tfdist.strategies.DiLoCo(
        every=options.every,
        fragments=options.fragments,
        delay=options.delay,
        wire="int4",
        outer=lambda: keras.optimizers.SGD(options.outer_rate, momentum=0.5, nesterov=True),
    )


def train(strategy: Any, options: argparse.Namespace) -> tuple[keras.Model, dict[str, list[float]]]:
    """Train with a backup after each epoch, which keeps the weights of each worker."""
    keras.utils.set_random_seed(SEED)
    data = digits.load_digits()
    with strategy.scope():
        hidden = [keras.layers.Dense(256, "relu"), keras.layers.Dense(128, "relu")]
        model = keras.Sequential(
            [keras.Input(data.train_images.shape[1:]), keras.layers.Flatten(), *hidden, keras.layers.Dense(10)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.AdamW(2e-3), loss, metrics=["accuracy"])
    validation = (data.validation_images, data.validation_labels)
    history = model.fit(
        *(data.train_images, data.train_labels),
        batch_size=BATCH,
        epochs=options.epochs,
        validation_data=validation,
        callbacks=[BackupAndRestore(options.output / "backup")],
        verbose=2,
    )
    tested = model.evaluate(data.test_images, data.test_labels, verbose=0, return_dict=True)
    print(f"test accuracy        {tested['accuracy']:.4f}, of the mean over workers", flush=True)
    return model, history.history


def _every(text: str) -> int | str:
    return text if text == "auto" else int(text)


def main() -> None:
    options = parse()
    if options.from_environment:
        strategy = tfdist.strategies.from_environment()
    else:
        strategy = tfdist.strategies.MultiWorkerMirroredStrategy(synchronization=schedule(options))
    model, history = train(strategy, options)
    if tfdist.cluster.from_environment().is_chief:
        options.output.mkdir(parents=True, exist_ok=True)
        model.save(options.output / "model.keras")
        lines = [f"{epoch},{loss:.6f}" for epoch, loss in enumerate(history["val_loss"], start=1)]
        (options.output / "losses.csv").write_text("\n".join(["epoch,val_loss", *lines, ""]), encoding="utf-8")
        print(f"wrote                {options.output / 'model.keras'}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=_every, default=10, help="steps between exchanges, or auto; %(default)s")
    parser.add_argument("--fragments", type=int, default=2, help="parts, exchanged in turn; default: %(default)s")
    parser.add_argument("--delay", type=int, default=1, help="steps while a part travels; default: %(default)s")
    parser.add_argument("--outer-rate", type=float, default=0.7, help="default: %(default)s")
    parser.add_argument("--from-environment", action="store_true", help="take the schedule of tfdist run")
    parser.add_argument("--epochs", type=int, default=10, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/far_apart", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
