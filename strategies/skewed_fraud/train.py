"""Find rare cases in a skewed table, with balanced batches for training and correct probabilities.

python strategies/skewed_fraud/train.py
tfdist run --strategy multi-worker -n 2 strategies/skewed_fraud/train.py
tfdist run --strategy multi-worker -n 2 strategies/skewed_fraud/train.py --order full    # batches without balancing

The table is scikit-learn's of breast cancer. Most malignant cases are left out of training, so that one row in twenty
is a case. The rows that are left out are for the test, each with the weight that it has in the world.
"""

import argparse
from pathlib import Path

import keras
import numpy as np
from sklearn import datasets, metrics

import tfdist

SEED, SHARE = 17, 0.05  # the share of cases, in training and in the world


def table() -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return columns of unit scale with the label 1 for a case, for training and tests; test rows have weights."""
    bunch = datasets.load_breast_cancer()
    order = np.random.default_rng(SEED).permutation(len(bunch.target))
    x, y = bunch.data[order], 1 - bunch.target[order]
    cases, others = np.flatnonzero(y == 1), np.flatnonzero(y == 0)
    normal = others[: len(others) * 2 // 3]
    few = cases[: round(len(normal) * SHARE / (1 - SHARE))]
    rows = np.concatenate([normal, few])
    rest = np.setdiff1d(np.arange(len(y)), rows)
    x = ((x - x[rows].mean(0)) / x[rows].std(0)).astype(np.float32)
    weight = np.where(y[rest] == 1, SHARE / np.mean(y[rest] == 1), (1 - SHARE) / np.mean(y[rest] == 0))
    return {"x": x[rows], "y": y[rows]}, {"x": x[rest], "y": y[rest], "weight": weight}


def judged(y: np.ndarray, logits: np.ndarray, weight: np.ndarray) -> str:
    """Return a sentence on the precision of the found cases, and on the quality of the probabilities."""
    probability = 1 / (1 + np.exp(-logits[:, 0].astype(np.float64)))
    precision = metrics.average_precision_score(y, logits, sample_weight=weight)
    loss = metrics.log_loss(y, probability, sample_weight=weight)
    share = np.average(probability, weights=weight)
    return f"average precision {precision:.4f}, log loss {loss:.4f}, mean probability {share:.4f} of {SHARE}"


def main() -> None:
    options = parse()
    strategy = tfdist.strategies.from_environment()
    keras.utils.set_random_seed(SEED)
    train, test = table()
    tfdist.data.write(train, options.output / "train", label="y", exists="keep")
    reading = tfdist.data.read(
        options.output / "train", global_batch_size=options.batch_size, seed=SEED, order=options.order
    )
    with strategy.scope():
        hidden = keras.layers.Dense(options.units, "relu", kernel_regularizer=keras.regularizers.L2(1e-3))
        model = keras.Sequential([keras.Input((train["x"].shape[1],)), hidden, keras.layers.Dense(1)])
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(options.learning_rate), loss)
    losses = model.fit(reading, shuffle=False, epochs=options.epochs, verbose=2).history["loss"]
    logits = model.predict(test["x"], batch_size=128, verbose=0)
    if tfdist.cluster.from_environment().is_chief:
        right = reading.prior().corrected(logits)  # from the share of cases in batches to that in the table
        print(f"training             {len(train['y'])} rows with {int(train['y'].sum())} cases")
        print("losses              ", *(f"{loss:.5f}" for loss in losses[:: max(1, len(losses) // 5)]))
        print(f"as learnt            {judged(test['y'], logits, test['weight'])}")
        print(f"with the prior       {judged(test['y'], right, test['weight'])}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--order", choices=["balanced", "full"], default="balanced", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=8, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=32, help="global batch size; default: %(default)s")
    parser.add_argument("--units", type=int, default=32, help="units of the hidden layer; default: %(default)s")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default="runs/skewed_fraud", help="folder; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
