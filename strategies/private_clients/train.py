"""Train a model for many small clients that reveals little about any of them, though a fifth of them may lie.

python strategies/private_clients/train.py                     # two tasks: budgets and liars, and central training
tfdist federated simulate strategies/private_clients/train.py  # the rounds of `app`; each line has the spent epsilon
"""

import argparse
from dataclasses import dataclass, replace

import keras
import numpy as np
from sklearn import datasets, preprocessing

from tfdist.federated import App, ClientPrivacy, FedAvg, Liars, Median, Participation, simulate, split_iid

SEED = 17
DELTA = 1e-3  # less than 1 / clients
LIARS = Liars(0.2, "sign-flip", strength=10)


@dataclass(frozen=True)
class Task:
    """A task for clients to learn; `clip` is about the norm of an honest update."""

    name: str
    x: np.ndarray
    y: np.ndarray
    clients: int
    fraction: float  # part of the clients in a round
    clip: float

    @property
    def taking_part(self) -> int:
        return round(self.fraction * self.clients)


def tumours(clients: int = 152) -> Task:
    """Benign or malignant from 30 measurements: medical practices with three patients each."""
    x, y = datasets.load_breast_cancer(return_X_y=True)
    return Task("breast cancer", preprocessing.scale(x).astype("float32"), y, clients, fraction=0.3, clip=0.3)


def digits(clients: int = 479) -> Task:
    """Handwritten digits: devices with three images each."""
    x, y = datasets.load_digits(return_X_y=True)
    return Task("digits", (x / 16 - 0.3).astype("float32"), y, clients, fraction=0.2, clip=0.3)


def application(task: Task, epsilon: float | None = None) -> App:
    def make_model() -> keras.Model:
        """One layer: the noise grows with the number of weights."""
        keras.utils.set_random_seed(SEED)
        layers = [keras.Input(task.x.shape[1:]), keras.layers.Dense(len(set(task.y)), kernel_initializer="zeros")]
        model = keras.Sequential(layers)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
        return model

    order = np.random.default_rng(SEED).permutation(len(task.y))
    test, train = np.split(order, [len(order) // 5])
    return App(
        make_model,
        split_iid((task.x[train], task.y[train]), task.clients, seed=SEED),
        FedAvg(epochs=2, batch_size=None, weighting="uniform", server_momentum=0.5),
        participation=Participation(fraction=task.fraction, evaluate_every=10),
        test_data=(task.x[test], task.y[test]),
        privacy=None if epsilon is None else ClientPrivacy(epsilon=epsilon, delta=DELTA, clip=task.clip),
    )


app = application(tumours(), epsilon=3)


def accuracy(found: App, rounds: int, liars: Liars | None = None) -> float:
    return simulate(found, rounds=rounds, seed=SEED, liars=liars).rounds[-1].evaluation["accuracy"]


def central(found: App) -> float:
    """Train with all data in one place, until the loss no longer falls."""
    data = [found.data_of(client).nest for client in found.names()]
    model = found.make_model()
    done = keras.callbacks.EarlyStopping("loss", min_delta=1e-3, patience=3)
    model.fit(*map(np.concatenate, zip(*data, strict=True)), epochs=100, callbacks=[done], verbose=0)
    return model.evaluate(*found.test_data, verbose=0, return_dict=True)["accuracy"]


def compare(task: Task, rounds: int, budgets: list[float]) -> None:
    """Print the accuracy with budgets, liars and a rule, and that of a model that has all data."""
    plain = application(task)
    found = {"federated": plain, "with the median": replace(plain, aggregator=Median(liars=task.taking_part // 3))}
    found |= {f"with epsilon {epsilon:g}": application(task, epsilon) for epsilon in budgets}
    print(f"{task.name}: {task.clients} clients, about {task.taking_part} in each of {rounds} rounds")
    print(f"  all data in one place  {central(plain):.3f}")
    for name, one in found.items():
        print(f"  {name:<22} {accuracy(one, rounds):.3f}, and {accuracy(one, rounds, LIARS):.3f} if a fifth lies")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="default: %(default)s")
    parser.add_argument("--epsilon", type=float, nargs="*", default=[8, 3], help="budgets; default: 8 3")
    options = parser.parse_args()
    for task in (tumours(), digits()):
        compare(task, options.rounds, options.epsilon)


if __name__ == "__main__":
    main()
