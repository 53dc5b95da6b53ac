"""`fit` with one replica in a strategy's scope, compared with plain Keras without a scope."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.peer_environment import quietly
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.planner import machine

__all__ = ["LoneReplicaBench", "LoneReplicaReport", "command"]

ARMS = ("plain", "tfdist", "TensorFlow")
_WHAT = ("seconds", "processor", "megabytes")


@dataclass(frozen=True, kw_only=True)
class LoneReplicaBench(Suite):
    """Train one model on one device, each time in a new process, in turns:

    \b
    plain       Keras without a scope
    tfdist      in the scope of tfdist.strategies.from_environment()
    TensorFlow  in the scope of TensorFlow's MirroredStrategy of one device

    A time is that of the fastest of several epochs, divided by its steps, with all work of fit. Memory is the most that
    the process had, including TensorFlow and the imports.
    """

    model: str = option("dense", "What is trained.", choices=("dense", "convolutional"))
    steps: int = option(500, "Of an epoch.")
    epochs: int = option(3, "After the one that traces.")
    rounds: int = option(7, "Processes of each.")

    def run(self, told: Told = untold) -> "LoneReplicaReport":
        with machine.observed() as about:
            found = in_turns(ARMS, lambda arm, turn: self._train(arm), count=self.rounds, told=told)
        return LoneReplicaReport(setup=self, found=found, machine=about)

    def _train(self, arm: str) -> dict[str, float]:
        command = [sys.executable, "-m", "benchmarks.steps.lone_replica_training", arm, self.model]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        said = quietly([*command, str(self.steps), str(self.epochs)], env=environment)
        trained: dict[str, float] = json.loads(said.splitlines()[-1])
        return trained


@dataclass(frozen=True, kw_only=True)
class LoneReplicaReport(Report):
    """All arms, and the measurements of each process: wall and CPU seconds of a step, and megabytes."""

    setup: LoneReplicaBench
    found: Mapping[str, Sequence[Mapping[str, float]]]

    def of(self, arm: str, what: str) -> list[float]:
        return [one[what] for one in self.found[arm]]

    def over_plain(self, arm: str, what: str) -> Quartiles:
        """Return the ratio of an arm's figure to that of plain Keras, round by round; below 1 the arm needs less."""
        return ratio(self.of(arm, what), self.of("plain", what))

    def derived(self) -> dict[str, Any]:
        return {f"{what}_over_plain": {arm: self.over_plain(arm, what) for arm in ARMS[1:]} for what in _WHAT}

    def shown(self) -> Iterator[Table | str]:
        scales = {"seconds": 1e3, "processor": 1e3, "megabytes": 1.0}
        rows = []
        for arm in ARMS:
            row = [arm]
            for what, scale in scales.items():
                row.append(f"{scale * quartiles(self.of(arm, what)).median:.4g}")
                row.append("" if arm == "plain" else str(self.over_plain(arm, what)))
            rows.append(row)
        heads = ("ms per step", "over plain", "of the processor", "over plain", "MB", "over plain")
        yield Table(("", *heads), rows)
        yield f"{self.setup.model}, batches of 32, Adam, one metric; {self.setup.steps} steps in an epoch."
        yield self.ran_on()


command = suite_command(
    "lone-replica",
    LoneReplicaBench,
    examples={
        "python -m benchmarks lone-replica": "minutes",
        "python -m benchmarks lone-replica --model convolutional --steps 150": "steps of 10 ms",
        "python -m benchmarks lone-replica --rounds 1 --steps 20": "whether it runs",
    },
    page="benchmarks",
)
