"""Recovery: how long after the death of a worker all step again with their state, beside Horovod elastic."""

import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfdist.bench.recovery import jobs
from tfdist.bench.recovery.jobs import STRATEGIES, Job, Setup
from tfdist.errors import TfdistError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, quartiles

__all__ = ["PEER", "STRATEGIES", "Report", "Setup", "Way", "run"]

PEER = "horovod elastic"


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to go on after a death.

    Attributes:
        name: `PEER`, or the strategy.
        jobs: what each job has shown, one per round.
        why_not: why it could not be measured; empty if it was.
    """

    name: str
    jobs: Sequence[Job] = field(default_factory=list)
    why_not: str = ""

    @property
    def noticed(self) -> list[float]:
        """Seconds from each kill until it was seen."""
        return [seconds for job in self.jobs for seconds in job.noticed]

    @property
    def recovered(self) -> list[float]:
        """Seconds from each kill until all workers that go on had ended a step."""
        return [seconds for job in self.jobs for seconds in job.recovered]

    @property
    def repeated(self) -> list[int]:
        """Steps that were done once more, after each kill."""
        return [steps for job in self.jobs for steps in job.repeated]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was measured, and the machine.

    Attributes:
        setup: what was measured.
        ways: all of them, also those that could not be measured.
        machine: processor, cores, versions, time and load at the start, and the load at the end.
    """

    setup: Setup
    ways: Sequence[Way]
    machine: Mapping[str, str]

    def way(self, name: str) -> Way:
        """Return one way."""
        return next(way for way in self.ways if way.name == name)

    def times_of_peer(self, way: Way) -> Quartiles | None:
        """Return how many times as long the peer takes to recover, round by round; None where one was not measured."""
        peer = self.way(PEER)
        if peer.why_not or way.why_not:
            return None
        pairs = zip(peer.jobs, way.jobs, strict=True)
        return quartiles([quartiles(a.recovered).median / quartiles(b.recovered).median for a, b in pairs])

    def to_json(self) -> str:
        """Return the report as JSON, with what follows from the measurements."""
        results: list[dict[str, Any]] = []
        for way in self.ways:
            if way.why_not:
                results.append({"way": way.name, "why not": way.why_not})
                continue
            times = self.times_of_peer(way)
            results.append(
                {
                    "way": way.name,
                    "noticed": asdict(quartiles(way.noticed)),
                    "recovered": asdict(quartiles(way.recovered)),
                    "recovered at most": max(way.recovered),
                    "repeated": asdict(quartiles(way.repeated)),
                    "recovery of the peer / this": None if times is None else asdict(times),
                }
            )
        return json.dumps({**asdict(self), "results": results}, indent=2)


def run(setup: Setup, *, on_turn: Callable[[str], None] = lambda what: None) -> Report:
    """Let all ways take turns, and return the report.

    Args:
        setup: what to measure.
        on_turn: told what is done next.
    Raises:
        TfdistError: a job of tfdist has not recovered, or the two sides have not the same state.

    Example:
        >>> run(Setup(rounds=3)).way("ring").repeated                                        # doctest: +SKIP
        [0, 1, 0, 0, 1, 0, 0, 0, 1]
    """
    about, why_not, names = machine.describe(), dict[str, str](), (PEER, *setup.strategies)
    found: dict[str, list[Job]] = {name: [] for name in names}
    if not jobs.has_horovod():
        built = [PEER, *(name for name in setup.strategies if name.startswith("ring"))]
        why_not = dict.fromkeys(built, "Horovod is not installed; `tfdist build horovod` builds it")
    for turn in range(setup.rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            if name in why_not:
                continue
            on_turn(f"{name}, round {turn + 1} of {setup.rounds}")
            with tempfile.TemporaryDirectory(prefix="tfdist-bench-") as folder:
                try:
                    found[name].append(_job(setup, name, Path(folder)))
                except TfdistError as error:
                    if name != PEER:
                        raise
                    why_not[name] = str(error)  # ours are measured all the same
    states = {(job.variables, job.bytes) for each in found.values() for job in each}
    if len(states) > 1:
        raise TfdistError(f"the states differ, as (variables, bytes): {sorted(states)}; nothing can be compared.")
    about["load average at the end"] = machine.describe()["load average"]
    ways = [Way(name=name, jobs=found[name], why_not=why_not.get(name, "")) for name in names]
    return Report(setup=setup, ways=ways, machine=about)


def _job(setup: Setup, name: str, folder: Path) -> Job:
    if name == PEER:
        return jobs.horovod_job(setup, folder)
    return jobs.tfdist_job(setup, name, folder)
