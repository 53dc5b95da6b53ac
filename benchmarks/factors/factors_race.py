"""Alternating least squares by the recipe `least_squares`, by the package `implicit`, and by a loop in NumPy."""

import os
import runpy
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peer_environment import PeerEnvironment, quietly
from tfdist.bench.suite import Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine

__all__ = ["FactorsBench", "FactorsReport", "command"]

RECIPE = Path(__file__).parents[2] / "strategies" / "least_squares" / "train.py"
ARMS = ("tfdist", "implicit", "implicit-cg", "NumPy")
_IMPLICIT = "implicit==0.7.2"
_REGULARIZATION, _ALPHA, _SEED = 1.0, 2.0, 17


@dataclass(frozen=True, kw_only=True)
class FactorsBench(Suite):
    """Factorize a matrix of words and functions of installed packages, in turns:

    \b
    tfdist       the recipe least_squares on workers of one core each; exact solutions
    implicit     its Cholesky solver on as many threads; exact solutions
    implicit-cg  its default: three steps of conjugate gradients
    NumPy        a loop over rows and columns in one process; exact solutions

    All are in float32 and minimize the same objective, whose value is given after the last sweep. The figure is the
    median time of a sweep over rows and columns, without the first. CPU seconds are those of all workers, and are more
    reliable on a busy machine. implicit is installed into a temporary environment, which needs a package index.
    """

    factors: int = option(32, "Numbers for a row and for a column.", minimum=2)
    sweeps: int = option(6, "Of each factorization.", minimum=2)
    rounds: int = option(3, "Factorizations of each.")
    workers: int = option(2, "And threads of implicit.")
    packages: Sequence[str] = option(("keras", "numpy", "scipy", "sklearn"), "Whose code is read.", flags=["--package"])

    def run(self, told: Told = untold) -> "FactorsReport":
        with machine.observed() as about, tempfile.TemporaryDirectory(prefix="tfdist-factors-") as name:
            folder = Path(name)
            told(f"installing {_IMPLICIT}")
            peer = PeerEnvironment(folder, _IMPLICIT, side=Path(__file__).with_name("implicit_side.py"))
            matrix = _matrix(self, folder / "matrix.npz")

            def measure(arm: str, turn: int) -> dict[str, float]:
                into = folder / arm
                if arm == "tfdist":
                    factors = _trained(self, into)
                else:
                    setup: dict[str, Any] = {
                        "factors": self.factors,
                        "sweeps": self.sweeps,
                        "threads": self.workers,
                        "seed": turn,
                    }
                    setup |= {"regularization": _REGULARIZATION, "matrix": str(folder / "matrix.npz")}
                    factors = Path(peer.ask(arm, factors_into=f"{into}.npz", **setup))
                found = np.load(factors)
                clock, processor = np.median(found["seconds"][1:], axis=0)
                return {
                    "seconds": float(clock),
                    "processor": float(processor) * (self.workers if arm == "tfdist" else 1),
                    "objective": _objective(matrix, found["pieces"], found["words"]),
                }

            measured = in_turns(ARMS, measure, count=self.rounds, told=told)
            size = (*(int(one) for one in matrix["shape"]), len(matrix["rows"]))
        return FactorsReport(setup=self, machine=about, size=size, measured=measured)


def _matrix(setup: FactorsBench, path: Path) -> Mapping[str, Any]:
    """The entries from which the recipe learns."""
    recipe = runpy.run_path(str(RECIPE.with_name("word_counts.py")))
    rows, columns, weights, held, shape = recipe["learnt_from"](
        recipe["count"](list(setup.packages), 20), _ALPHA, "float32", np.random.default_rng(_SEED)
    )
    del held
    np.savez(path, rows=rows, columns=columns, weights=weights, shape=shape)
    return {"rows": rows, "columns": columns, "weights": weights, "shape": shape}


def _trained(setup: FactorsBench, folder: Path) -> Path:
    own = ["--factors", str(setup.factors), "--sweeps", str(setup.sweeps), "--packages", *setup.packages]
    command = [sys.executable, "-m", "tfdist", "run", "--strategy", "multi-worker", "-n", str(setup.workers)]
    command += [str(RECIPE), "--output", str(folder), *own]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"}
    quietly(command, env=environment)
    return folder / "factors.npz"


def _objective(matrix: Mapping[str, Any], x: Any, y: Any) -> float:
    """The weighted squared error over all entries, including missing ones, and the penalty."""
    x, y = x.astype(np.float64), y.astype(np.float64)
    total = np.sum((x.T @ x) * (y.T @ y)) + _REGULARIZATION * (np.sum(x * x) + np.sum(y * y))
    for some in np.array_split(np.arange(len(matrix["rows"])), max(1, len(matrix["rows"]) // 100_000)):
        guess = np.einsum("ij,ij->i", x[matrix["rows"][some]], y[matrix["columns"][some]])
        total += np.sum((1 + matrix["weights"][some]) * (1 - guess) ** 2 - guess**2)
    return float(total)


@dataclass(frozen=True, kw_only=True)
class FactorsReport(Report):
    """All arms, and their factorizations."""

    setup: FactorsBench
    size: Sequence[int]  # rows, columns, entries
    measured: Mapping[str, Sequence[Mapping[str, float]]]

    def of(self, arm: str, what: str) -> list[float]:
        """The wall "seconds", or the CPU seconds ("processor"), of a sweep, for each factorization."""
        return [one[what] for one in self.measured[arm]]

    def derived(self) -> dict[str, Any]:
        return {
            f"{what}_over_tfdist": {
                arm: ratio(self.of(arm, what), self.of("tfdist", what)) for arm in ARMS if arm != "tfdist"
            }
            for what in ("seconds", "processor")
        }

    def shown(self) -> Iterator[Table | str]:
        over = self.derived()
        rows = [
            [
                arm,
                f"{quartiles(self.of(arm, 'seconds')).median:.3f}",
                str(over["seconds_over_tfdist"].get(arm, "")),
                f"{quartiles(self.of(arm, 'processor')).median:.3f}",
                str(over["processor_over_tfdist"].get(arm, "")),
                f"{self.measured[arm][-1]['objective']:,.0f}",
            ]
            for arm in ARMS
        ]
        heads = ("seconds of a sweep", "over tfdist's", "of the processor", "over tfdist's", "objective")
        yield Table(("", *heads), rows)
        yield "{:,} rows, {:,} columns, {:,} entries to learn from.".format(*self.size)
        yield self.ran_on()


command = suite_command(
    "factors",
    FactorsBench,
    examples={
        "python -m benchmarks factors": "minutes on 2 cores",
        "python -m benchmarks factors --package keras --sweeps 2 --rounds 1": "whether it runs",
    },
    page="benchmarks",
)
