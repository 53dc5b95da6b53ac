"""Rules against clients that lie, on handwritten digits: each rule under each attack, with two splits of data."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tfdist.bench.suite import Report, Suite, Table, Told, option, quartiles, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import ConfigError
from tfdist.federated import (
    Aggregator,
    App,
    FedAvg,
    GeometricMedian,
    Krum,
    Mean,
    Median,
    Mixing,
    MultiKrum,
    NormClipping,
    Participation,
    TrimmedMean,
    split_dirichlet,
    split_iid,
)
from tfdist.planner import machine

__all__ = ["ATTACKS", "RULES", "SPLITS", "LiarsBench", "LiarsReport", "command"]

NO_ATTACK = "none"
ATTACKS = (NO_ATTACK, "sign-flip", "sign-flip:10", "alie", "ipm", "mimic", "label-flip")
SPLITS = ("alike", "unlike")
RULES = ("mean", "median", "trimmed mean", "Krum", "Multi-Krum", "geometric median", "norm clipping", "mixed median")
_TEST = 360  # images


@dataclass(frozen=True, kw_only=True)
class LiarsBench(Suite):
    """Train on handwritten digits with clients that lie, by each rule and under each attack.

    Clients are alike, or differ: then their shares of each digit are drawn from a Dirichlet distribution. The figure is
    the accuracy on the test data after the last round, as median and quartiles over seeds. The same clients lie in all
    trainings. Nothing is timed.
    """

    clients: int = option(20, "How many there are.", minimum=5)
    part: float = option(0.2, "Of the clients, that lies.", minimum=0.01, maximum=0.49, metavar="X")
    alpha: float = option(0.3, "Of the Dirichlet distribution of unlike clients.", minimum=0.01, metavar="X")
    rounds: int = option(25, "Of each training.")
    seeds: int = option(1, "Trainings each.")

    def __post_init__(self) -> None:
        super().__post_init__()
        most = rule("Krum", 0).survives(self.clients)  # type: ignore[attr-defined]  # of robust rules
        if self.liars > most:
            raise ConfigError(
                f"part is {self.part:g}, which are {self.liars} of {self.clients} clients; Krum survives {most}. Pass "
                "a smaller part.",
                name="part",
                received=self.part,
            )

    @property
    def liars(self) -> int:
        """The number of clients that lie."""
        return max(1, round(self.part * self.clients))

    def run(self, told: Told = untold) -> "LiarsReport":
        found: dict[str, dict[str, dict[str, list[float]]]] = {}
        with machine.observed() as about:
            for split in SPLITS:
                apps = [_app(self, split, seed) for seed in range(self.seeds)]
                for name in RULES:
                    told(f"{split} clients, {name}")
                    found.setdefault(split, {})[name] = {
                        attack: [self._accuracy(app, name, attack, seed) for seed, app in enumerate(apps)]
                        for attack in ATTACKS
                    }
        return LiarsReport(setup=self, accuracy=found, machine=about)

    def _accuracy(self, app: App, name: str, attack: str, seed: int) -> float:
        from tfdist.federated import simulate  # these load Keras, which `--help` does not need
        from tfdist.federated.robust.lying_clients import read

        app = _Shared(**{**vars(app), "aggregator": rule(name, self.liars)})
        liars = None if attack == NO_ATTACK else read(f"{self.part}:{attack}")
        return simulate(app, rounds=self.rounds, seed=seed, liars=liars).rounds[-1].evaluation["accuracy"]


def rule(name: str, liars: int) -> Aggregator:
    """Return the rule of this name, for this number of liars."""
    made: dict[str, Aggregator] = {
        "mean": Mean(),
        "median": Median(liars=liars),
        "trimmed mean": TrimmedMean(liars=liars),
        "Krum": Krum(liars=liars),
        "Multi-Krum": MultiKrum(liars=liars),
        "geometric median": GeometricMedian(liars=liars),
        "norm clipping": NormClipping(liars=liars),
        "mixed median": Mixing(Median(liars=liars)),
    }
    return made[name]


class _Shared(App):
    """An application whose trainings share one graph, because making it takes longer than most trainings."""

    def trainer(self) -> Any:
        return _trainer()


@functools.cache
def _trainer() -> Any:
    return App(_make_model, [()], FedAvg(epochs=1, batch_size=16)).trainer()


def _make_model() -> Any:
    import keras

    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(32, "relu"), keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.2), loss, metrics=["accuracy"])
    return model


def _app(setup: LiarsBench, split: str, seed: int) -> App:
    from sklearn import datasets

    x, y = datasets.load_digits(return_X_y=True)
    x = (x / 16).astype("float32")
    order = np.random.default_rng(seed).permutation(len(y))
    test, train = order[:_TEST], order[_TEST:]
    data = (x[train], y[train])
    if split == "alike":
        parts = split_iid(data, setup.clients, seed=seed)
    else:
        parts = split_dirichlet(data, y[train], setup.clients, alpha=setup.alpha, seed=seed, minimum=10)
    return App(
        _make_model,
        parts,
        FedAvg(epochs=1, batch_size=16, weighting="uniform"),
        test_data=(x[test], y[test]),
        participation=Participation(evaluate_every=setup.rounds),
    )


@dataclass(frozen=True, kw_only=True)
class LiarsReport(Report):
    """The accuracy under each rule and attack."""

    setup: LiarsBench
    # split -> rule -> attack -> accuracy on the test data, one for each seed
    accuracy: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]]

    def lowest(self, split: str, name: str) -> float:
        """Return the accuracy of a rule under its worst attack."""
        return min(median(values) for values in self.accuracy[split][name].values())

    def derived(self) -> dict[str, Any]:
        return {"lowest": {split: {name: self.lowest(split, name) for name in RULES} for split in SPLITS}}

    def shown(self) -> Iterator[Table | str]:
        for split in SPLITS:
            rows = self.accuracy[split]
            yield f"{split} clients:"
            yield Table(
                ("rule", *ATTACKS, "lowest"),
                [
                    [name, *(str(quartiles(rows[name][one])) for one in ATTACKS), f"{self.lowest(split, name):.2f}"]
                    for name in RULES
                ],
            )
        setup = self.setup
        yield (
            f"{setup.liars} of {setup.clients} clients lie; {setup.rounds} rounds; accuracy on {_TEST} images, "
            f"median [quartiles] of {setup.seeds} seeds; unlike: alpha {setup.alpha:g}; {self.ran_on()}"
        )


command = suite_command(
    "liars",
    LiarsBench,
    examples={"python -m benchmarks liars": "minutes", "python -m benchmarks liars --part 0.4 --rounds 50": ""},
    page="federated-attacks",
)
