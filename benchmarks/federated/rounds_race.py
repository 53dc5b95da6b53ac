"""Rounds of simulated clients, compared with Flower's simulation: seconds of a round, and accuracy by rounds."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_environment import PeerEnvironment
from tfdist.bench.suite import Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.federated import App, FedAvg, split_dirichlet
from tfdist.planner import machine

__all__ = ["RoundsBench", "RoundsReport", "command"]

ARMS = ("tfdist", "Flower")
_FLOWER = "flwr[simulation]==1.42.0"
_BATCH, _RATE = 16, 0.1
_TEST = 360  # images


@dataclass(frozen=True, kw_only=True)
class RoundsBench(Suite):
    """Train softmax regression on handwritten digits by federated averaging, in simulations that take turns:

    \b
    tfdist   simulate: one process; clients train by Keras
    Flower   run_simulation: Ray's actors, one for each core; clients train in NumPy

    All clients take part in each round; their shares of each digit are drawn from a Dirichlet distribution. The split,
    the first weights, the batch size and the learning rate are the same; the order of examples is not. The first round,
    in which graphs are traced and actors start, is left out. Flower is installed into a temporary environment, which
    needs a package index.
    """

    clients: int = option(100, "How many there are.", minimum=2)
    alpha: float = option(0.3, "Of the Dirichlet distribution.", minimum=0.01, metavar="X")
    rounds: int = option(20, "Of each training.", minimum=2)
    turns: int = option(3, "Trainings of each simulation; each has a seed.")

    def run(self, told: Told = untold) -> "RoundsReport":
        with machine.observed() as about, tempfile.TemporaryDirectory(prefix="tfdist-flower-") as folder:
            told(f"installing {_FLOWER}")
            flower = PeerEnvironment(Path(folder), _FLOWER, side=Path(__file__).with_name("flower_side.py"))
            path = Path(folder, "parts.npz")

            def measure(arm: str, turn: int) -> dict[str, list[float]]:
                parts, test = _split(self, turn)
                if arm == "tfdist":
                    return _simulated(self, parts, test, turn)
                whole = [np.concatenate(one) for one in zip(*parts, strict=True)]
                ends = np.cumsum([0, *(len(y) for _, y in parts)])
                np.savez(path, x=whole[0], y=whole[1], ends=ends, x_test=test[0], y_test=test[1])
                setup = {"clients": self.clients, "rounds": self.rounds, "batch_size": _BATCH, "learning_rate": _RATE}
                found: dict[str, list[float]] = flower.ask("rounds", data=str(path), seed=turn, **setup)
                return found

            measured = in_turns(ARMS, measure, count=self.turns, told=told)
        return RoundsReport(setup=self, machine=about, measured=measured)


def _split(setup: RoundsBench, seed: int) -> tuple[list[Any], Any]:
    """The examples of each client, and the test examples."""
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[:_TEST], order[_TEST:]
    parts = split_dirichlet((x[train], y[train]), y[train], setup.clients, alpha=setup.alpha, seed=seed, minimum=2)
    return parts, (x[test], y[test])


def _make_model() -> Any:
    import keras

    layer = keras.layers.Dense(10, activation="softmax", kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((64,)), layer])
    model.compile(keras.optimizers.SGD(_RATE), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _simulated(setup: RoundsBench, parts: list[Any], test: Any, seed: int) -> dict[str, list[float]]:
    from tfdist.federated import simulate  # loads Keras, which `--help` does not need

    app = App(_make_model, parts, FedAvg(batch_size=_BATCH), test_data=test)
    found = simulate(app, rounds=setup.rounds, seed=seed).rounds
    return {"seconds": [one.seconds for one in found[1:]], "accuracy": [one.evaluation["accuracy"] for one in found]}


@dataclass(frozen=True, kw_only=True)
class RoundsReport(Report):
    """Both simulations, and their trainings."""

    setup: RoundsBench
    measured: Mapping[str, Sequence[Mapping[str, Sequence[float]]]]

    def seconds(self, arm: str) -> list[float]:
        """Return the median seconds of a round, for each training."""
        return [quartiles(one["seconds"]).median for one in self.measured[arm]]

    def accuracy(self, arm: str, part: float) -> list[float]:
        """Return the accuracy after this fraction of the rounds, for each training."""
        return [one["accuracy"][max(0, round(part * self.setup.rounds) - 1)] for one in self.measured[arm]]

    def derived(self) -> dict[str, Any]:
        return {"against_flower": ratio(self.seconds("Flower"), self.seconds("tfdist"))}

    def shown(self) -> Iterator[Table | str]:
        parts = (0.25, 0.5, 1.0)
        heads = [f"accuracy after {round(part * self.setup.rounds)}" for part in parts]
        rows = [
            [arm, str(quartiles(self.seconds(arm))), *(str(quartiles(self.accuracy(arm, part))) for part in parts)]
            for arm in ARMS
        ]
        yield Table(("", "seconds of a round", *heads), rows)
        yield (
            f"{self.setup.clients} clients, all in each round. Flower's seconds over tfdist's: "
            f"{self.derived()['against_flower']}."
        )
        yield self.ran_on()


command = suite_command(
    "rounds",
    RoundsBench,
    examples={
        "python -m benchmarks rounds": "minutes on 2 cores",
        "python -m benchmarks rounds --clients 10 --rounds 3 --turns 1": "whether it runs",
    },
    page="federated",
)
