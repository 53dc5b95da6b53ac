"""Trials per hour of a search of the digits over this machine's cores, compared with Keras Tuner and Ray Tune."""

import collections
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_environment import PeerEnvironment, quietly
from tfdist.bench.suite import Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine

__all__ = ["TrialsBench", "TrialsReport", "command"]

PEERS = {"Keras Tuner": "keras_tuner", "Ray Tune": "ray_tune"}
ARMS = ("tfdist", *PEERS)
_REQUIREMENTS = ("tensorflow==2.21.0", "keras==3.15.1", "tensorboard", "keras-tuner==1.4.8", "ray[tune]==2.60.0")
_SCRIPT = "benchmarks.searches.searched_script"


@dataclass(frozen=True, kw_only=True)
class TrialsBench(Suite):
    """Search the digits at random, by searches that take turns; every trial trains all epochs of the same network:

    \b
    tfdist        a process for each trial, forked from one that has imported TensorFlow; saves after each epoch
    Keras Tuner   RandomSearch: one process, one trial after another over all cores; saves the best epoch
    Ray Tune      an actor for each slot, which takes trial after trial; saves nothing

    The rate counts from the ends of the first trials, one for each slot, so it leaves out the start of a search. The
    seconds of the whole search include the start. CPU seconds are those of the process that trains. The peers are
    installed into an environment of their own.
    """

    trials: int = option(24, "Of a search.", minimum=4)
    epochs: int = option(9, "Of each trial.")
    slots: int = option(2, "Trials at the same time.")
    turns: int = option(3, "Searches of each kind; each has a seed.")
    environment: str | None = option(None, "Folder that keeps the peers' environment.", metavar="FOLDER")

    def run(self, told: Told = untold) -> "TrialsReport":
        with machine.observed() as about, tempfile.TemporaryDirectory(prefix="tfdist-searches-") as temporary:
            folder = Path(temporary)
            told(f"installing {', '.join(_REQUIREMENTS)}")
            place = Path(self.environment or folder).absolute()
            place.mkdir(parents=True, exist_ok=True)
            peers = PeerEnvironment(place, *_REQUIREMENTS, side=Path(__file__).with_name("peer_side.py"))
            data = folder / "digits.npz"
            _write(data)

            def measure(arm: str, number: int) -> dict[str, float]:
                ends = folder / f"{arm}-{number}".replace(" ", "-")
                begun = time.time()
                if arm == "tfdist":
                    _search(self, data, ends, number)
                else:
                    setup = {"trials": self.trials, "epochs": self.epochs, "slots": self.slots, "seed": number}
                    peers.ask(PEERS[arm], data=str(data), ends=str(ends), **setup)
                taken, noted = time.time() - begun, _noted(ends)
                found = rate([when for when, _, _ in noted], self.slots)
                return {"seconds": taken, "rate": found, "processor": processor_seconds(noted)}

            measured = in_turns(ARMS, measure, count=self.turns, told=told)
        return TrialsReport(setup=self, machine=about, measured=measured)


def _noted(path: Path) -> list[tuple[float, int, float]]:
    lines = [line.split() for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted((float(when), int(process), float(seconds)) for when, process, seconds in lines)


def rate(ends: Sequence[float], slots: int) -> float:
    """Return the trials per hour after the first ones.

    Example:
        >>> rate([10.0, 10.0, 20.0, 20.0], 2)
        720.0
    """
    first = min(slots, len(ends) - 1)
    return 3600 * (len(ends) - first) / (ends[-1] - ends[first - 1])


def processor_seconds(noted: Sequence[tuple[float, int, float]]) -> float:
    """Return the median CPU seconds of a trial, without the first trial of a process that takes several.

    Example:
        >>> processor_seconds([(0.0, 7, 9.0), (1.0, 7, 11.0), (2.0, 7, 13.0)])
        2.0
    """
    of_process = collections.defaultdict[int, list[float]](list)
    for _, process, seconds in noted:
        of_process[process].append(seconds)
    each = [
        seconds
        for found in of_process.values()
        for seconds in ([b - a for a, b in itertools.pairwise(found)] if len(found) > 1 else found)
    ]
    return statistics.median(each)


def _write(path: Path) -> None:
    from tfdist.testing import digits  # imports Keras, which --help does not need

    found = digits.load_digits()
    np.savez(
        path,
        x=found.train_images,
        y=found.train_labels,
        x_validation=found.validation_images,
        y_validation=found.validation_labels,
    )


def _search(setup: TrialsBench, data: Path, ends: Path, seed: int) -> None:
    options = {
        "--scheduler": "random",
        "--metric": "val_accuracy",
        "--trials": setup.trials,
        "--epochs": setup.epochs,
        "--slots": setup.slots,
        "--seed": seed,
        "--output": f"{ends}-search",
    }
    words = [str(word) for pair in options.items() for word in pair]
    script = ("-m", _SCRIPT, str(data), str(setup.epochs), str(ends))
    quietly([sys.executable, "-m", "tfdist", "search", *words, *script], cwd=Path(__file__).parents[2])


@dataclass(frozen=True, kw_only=True)
class TrialsReport(Report):
    """All searches, and their measurements."""

    setup: TrialsBench
    measured: Mapping[str, Sequence[Mapping[str, float]]]

    def of(self, arm: str, what: str) -> list[float]:
        """Return the "rate", "processor" or "seconds" of each search of a kind."""
        return [one[what] for one in self.measured[arm]]

    def derived(self) -> dict[str, Any]:
        own = self.of("tfdist", "rate")
        return {f"against_{name}": ratio(own, self.of(arm, "rate")) for arm, name in PEERS.items()}

    def shown(self) -> Iterator[Table | str]:
        columns = {
            "rate": "trials in an hour",
            "processor": "processor seconds of a trial",
            "seconds": "seconds of a search",
        }
        rows = [[arm, *(str(quartiles(self.of(arm, what))) for what in columns)] for arm in ARMS]
        yield Table(("", *columns.values()), rows)
        found = self.derived()
        beside = " and ".join(f"{found[f'against_{name}']} times {arm}'s" for arm, name in PEERS.items())
        setup = self.setup
        yield f"{setup.trials} trials of {setup.epochs} epochs, {setup.slots} slots. The rate is {beside}."
        yield self.ran_on()


command = suite_command(
    "search",
    TrialsBench,
    examples={
        "python -m benchmarks search --environment peers": "minutes on 2 cores; keeps what it installs",
        "python -m benchmarks search --trials 4 --epochs 1 --turns 1": "whether it runs",
    },
    page="search",
)
