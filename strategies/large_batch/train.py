"""Train a classifier with a batch that is 32 times as large, by one of several methods.

python strategies/large_batch/train.py --method lars
tfdist run --strategy mirrored --replicas-per-worker 2 strategies/large_batch/train.py --data cancer --method linear
"""

import argparse
from dataclasses import dataclass

import keras
import numpy as np

import tfdist
from tfdist.optimizers import LARS, Warmup, scale_learning_rate
from tfdist.testing import digits

TIMES, WARMUP = 32, 0.2  # the factor of the batch; the warm-up's part of all steps
BASE_BATCH = {"digits": 8, "cancer": 4}
# The best of six rates each on the validation data, over two seeds, by `compare.py`.
RATES = {
    "digits": {"base": 0.032, "sgd": 0.1, "lars": 1.0, "lamb": 0.032},
    "cancer": {"base": 0.001, "sgd": 0.032, "lars": 0.1, "lamb": 0.032},
}
METHODS = {
    "base": "the small batch: SGD with momentum",
    "none": "the large batch at the rate of the small one",
    "linear": "the large batch, linear scaling of the rate and a warm-up",
    "sgd": "the large batch and a warm-up, with a rate that was searched",
    "lars": "LARS and a warm-up, with a rate that was searched",
    "lamb": "Lamb and a warm-up, with a rate that was searched",
}


@dataclass(frozen=True, kw_only=True)
class Part:
    """Examples, float32, and their classes."""

    x: np.ndarray
    y: np.ndarray


def load(data: str) -> tuple[Part, Part, Part]:
    """Return training, validation and test data; both sets ship with scikit-learn, so nothing is downloaded."""
    if data == "digits":
        found = digits.load_digits()
        return (
            Part(x=found.train_images, y=found.train_labels),
            Part(x=found.validation_images, y=found.validation_labels),
            Part(x=found.test_images, y=found.test_labels),
        )
    from sklearn.datasets import load_breast_cancer

    x, y = load_breast_cancer(return_X_y=True)
    order = np.random.default_rng(digits.SEED).permutation(len(y))
    x, y = x[order].astype("float32"), y[order].astype("int32")
    x = (x - x[200:].mean(axis=0)) / x[200:].std(axis=0)  # 369 for training, 57 for validation, 143 for tests
    return Part(x=x[200:], y=y[200:]), Part(x=x[143:200], y=y[143:200]), Part(x=x[:143], y=y[:143])


def build(data: str) -> keras.Model:
    """Return the classifier, not compiled."""
    if data == "digits":
        return digits.build_model()
    dense = keras.layers.Dense
    hidden = [dense(64, activation="relu"), dense(64, activation="relu")]
    return keras.Sequential([keras.Input((30,)), *hidden, dense(2, activation="softmax")])


def optimizer(method: str, data: str, steps: int, rate: float | None) -> keras.optimizers.Optimizer:
    """Return the optimizer of a method; the rate decays to 0 by a cosine over all steps."""
    base = BASE_BATCH[data]
    if rate is None:
        rate = RATES[data][method if method in RATES[data] else "base"]
        if method == "linear":
            rate = scale_learning_rate(rate, base, TIMES * base, rule="linear")
    rising = 0 if method in ("base", "none") else round(WARMUP * steps)
    schedule = Warmup(keras.optimizers.schedules.CosineDecay(rate, max(1, steps - rising)), steps=rising)
    if method == "lars":
        return LARS(schedule, weight_decay=1e-4, trust_coefficient=0.02)
    if method == "lamb":
        return keras.optimizers.Lamb(schedule)
    return keras.optimizers.SGD(schedule, momentum=0.9)


def train(data: str, method: str, *, epochs: int, seed: int, rate: float | None = None) -> tuple[float, float, float]:
    """Train once; return the accuracy and the loss on the validation data, and the accuracy on the test data."""
    keras.utils.set_random_seed(seed)
    strategy = tfdist.strategies.from_environment()
    training, validation, test = load(data)
    batch = BASE_BATCH[data] * (1 if method == "base" else TIMES)
    with strategy.scope():
        model = build(data)
        steps = epochs * -(-len(training.y) // batch)
        model.compile(
            optimizer(method, data, steps, rate), "sparse_categorical_crossentropy", weighted_metrics=["accuracy"]
        )
    model.fit(training.x, training.y, batch_size=batch, epochs=epochs, verbose=0)
    loss, accuracy = model.evaluate(validation.x, validation.y, batch_size=512, verbose=0)
    return accuracy, loss, model.evaluate(test.x, test.y, batch_size=512, verbose=0)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(BASE_BATCH), default="digits", help="default: %(default)s")
    parser.add_argument("--method", choices=list(METHODS), default="lars", help="default: %(default)s")
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--rate", type=float, help="highest learning rate; default: the result of `compare.py`")
    options = parser.parse_args()
    *_, accuracy = train(options.data, options.method, epochs=options.epochs, seed=options.seed, rate=options.rate)
    if tfdist.cluster.from_environment().is_chief:
        print(f"{METHODS[options.method]}: test accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
