"""Train over a network that limits steps, with fewer bytes for each example in up to three ways.

tfdist run --strategy ring -n 2 strategies/ring_all_reduce/train.py --wire-dtype bfloat16
tfdist run --strategy ring -n 2 strategies/ring_all_reduce/train.py --accumulate-steps 4
tfdist run --strategy ring -n 2 strategies/ring_all_reduce/train.py --batch-size 512 --reduction adasum

A wire dtype of 16 bits halves the bytes of a reduction. With k accumulated steps there is one reduction for k batches.
Adasum is for batches so large that their mean gradient takes too few steps: it adds the orthogonal parts of the
workers' gradients. The card has the results of each.
"""

import argparse
from pathlib import Path

import keras

import tfdist
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
        model = digits.build_model()
        updates = options.epochs * train.steps_per_epoch // options.accumulate_steps
        learning_rate = keras.optimizers.schedules.CosineDecay(options.learning_rate, decay_steps=max(1, updates))
        optimizer = DistributedOptimizer(
            keras.optimizers.AdamW(learning_rate, weight_decay=0.05),
            accumulate_steps=options.accumulate_steps,
            wire_dtype=options.wire_dtype,
            reduction=options.reduction,
            global_clipnorm=1.0,
        )
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
    summary = recipe_report.conclude(model, strategy, test, history=history, clock=clock, folder=options.output)

    if tfdist.cluster.from_environment().is_chief:
        members, width = strategy.num_replicas_in_sync, 2 if options.wire_dtype else 4
        sent = 2 * (members - 1) / members * width * model.count_params()  # of gradients, without metrics and agreement
        print(f"sent by a worker     {sent * summary.steps / 1e6:,.1f} MB in {summary.steps:,} updates", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=64, help="global batch size; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=2e-3, help="highest rate; default: %(default)s")
    parser.add_argument("--accumulate-steps", type=int, default=1, metavar="K", help="batches in an update; default: 1")
    parser.add_argument(
        "--wire-dtype", choices=("float16", "bfloat16"), help="dtype of gradients on the wire; default: float32"
    )
    parser.add_argument("--reduction", choices=("mean", "adasum"), default="mean", help="default: %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        default="runs/ring_all_reduce",
        help="folder for the loss curves and the summary; default: %(default)s",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
