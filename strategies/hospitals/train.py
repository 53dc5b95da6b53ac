"""Train one model for hospitals that do not share their patients' data, and digits on clients with different labels.

python strategies/hospitals/train.py                     # both tasks, compared with central training and single clients
tfdist federated simulate strategies/hospitals/train.py  # the rounds of `app`, with curves
"""

import argparse

import keras
import numpy as np
from sklearn import datasets, preprocessing

from tfdist.federated import App, FedAvg, FedProx, Participation, simulate, split_dirichlet

SEED = 17


def hospitals(count: int = 5, algorithm: FedAvg | None = None) -> App:
    """Benign or malignant from 30 measurements of a tumour; each hospital has a different mixture of both."""
    x, y = datasets.load_breast_cancer(return_X_y=True)
    x = preprocessing.scale(x).astype("float32")
    order = np.random.default_rng(SEED).permutation(len(y))
    test, train = order[:113], order[113:]

    def make_model() -> keras.Model:
        keras.utils.set_random_seed(SEED)
        model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(1)])
        loss = keras.losses.BinaryCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05), loss, metrics=[keras.metrics.BinaryAccuracy("accuracy", threshold=0)])
        return model

    y = y.astype("float32")[:, np.newaxis]
    parts = split_dirichlet((x[train], y[train]), y[train, 0], count, alpha=0.5, seed=SEED, minimum=10)
    names = ["Berlin", "Lyon", "Turin", "Porto", "Gdansk"]
    data = dict(zip([*names, *map(str, range(5, count))], parts, strict=False))
    return App(make_model, data, algorithm or FedAvg(epochs=2, batch_size=16), test_data=(x[test], y[test]))


def digits(clients: int = 20, algorithm: FedAvg | None = None) -> App:
    """Handwritten digits; most clients have only a few of the ten, and half of the clients take part in a round."""
    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    order = np.random.default_rng(SEED).permutation(len(y))
    test, train = order[:360], order[360:]

    def make_model() -> keras.Model:
        keras.utils.set_random_seed(SEED)
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
        return model

    parts = split_dirichlet((x[train], y[train]), y[train], clients, alpha=0.3, seed=SEED, minimum=10)
    return App(
        make_model,
        parts,
        algorithm or FedProx(mu=0.01, epochs=2, batch_size=16),
        participation=Participation(fraction=0.5),
        test_data=(x[test], y[test]),
    )


app = hospitals()


def compare(name: str, found: App, rounds: int) -> None:
    """Print the accuracy of the federated model, of one that has all data, and of those of single clients."""
    federated = simulate(found, rounds=rounds, seed=SEED)
    data = [found.data_of(client).nest for client in found.names()]
    x, y = (np.concatenate([part[index] for part in data]) for index in (0, 1))
    epochs = round(sum(one.examples for one in federated.rounds) / len(y)) * found.algorithm.epochs
    alone = [accuracy(found, *part, epochs) for part in data]
    print(f"{name}: {len(data)} clients with {', '.join(str(len(part[1])) for part in data)} examples")
    print(f"  federated, {rounds} rounds    {federated.rounds[-1].evaluation['accuracy']:.3f}")
    print(f"  all data in one place   {accuracy(found, x, y, epochs):.3f}")
    print(f"  each client alone       {np.mean(alone):.3f} on average, {min(alone):.3f} to {max(alone):.3f}")


def accuracy(found: App, x: np.ndarray, y: np.ndarray, epochs: int) -> float:
    """Train with only these data, for as long as the federated model."""
    model = found.make_model()
    model.fit(x, y, batch_size=found.algorithm.batch_size, epochs=epochs, verbose=0)
    return model.evaluate(*found.test_data, verbose=0, return_dict=True)["accuracy"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="default: %(default)s")
    options = parser.parse_args()
    compare("breast cancer", hospitals(), options.rounds)
    compare("digits", digits(), options.rounds)


if __name__ == "__main__":
    main()
