"""Recovery: the time from the death of a worker until all step again with their state, and Horovod elastic's time."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from benchmarks.jobs import recovery_jobs
from benchmarks.jobs.recovery_jobs import Job, Kills
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, in_turns, option, quartiles, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import TfdistError
from tfdist.planner import machine

__all__ = ["PEER", "STRATEGIES", "RecoveryBench", "RecoveryReport", "Way", "command"]

PEER = "horovod elastic"
#: the ways of tfdist: the strategy, and whether a second set of workers is kept ready
STRATEGIES = ("multi-worker", "multi-worker --standby", "ring", "ring --standby")


@dataclass(frozen=True, kw_only=True)
class RecoveryBench(Suite):
    """Kill a worker, and measure the time until all workers step again with their state.

    Two workers train eight dense layers with Adam. One of them gets SIGKILL before a scripted step. Jobs take turns:

    \b
    horovod elastic   the peer: horovod.tensorflow.elastic, a hand-written loop, committed after each
                      step; the remaining worker goes on ALONE, so a job has one kill
    multi-worker,     `tfdist run --max-restarts`, `fit` and tfdist.callbacks.BackupAndRestore: all
    ring              workers are started again, and as many as before go on
    ... --standby     a second set of workers, which has run up to its first step, takes over

    "Noticed" ends when the agent of `tfdist run`, or the remaining worker of Horovod, sees the kill. "Step again" ends
    when all continuing workers have ended a step with the restored state. "Peer" is Horovod's time over this one's in
    the same round: below 1 Horovod is faster. "Repeated" counts repeated steps, as median and maximum. "ms per step" is
    before the first kill. Quartiles are over kills, those of ratios over rounds.

    Before step --first, the process from which restarts are forked imports TensorFlow. In --every steps a second set of
    workers gets ready. If Horovod elastic cannot run, a line below the table says why.
    """

    strategies: Sequence[str] = option((), "Default: all.", choices=STRATEGIES, flags=["--strategy"])
    megabytes: float = option(10.0, "Size of weights and slots.", minimum=0.1)
    kills: int = option(3, "In a job of tfdist.")
    first: int = option(400, "Step of the first kill.")
    every: int = option(200, "Steps from start to next kill.")
    batch_size: int = option(64, "Of a step.", minimum=2)
    rounds: int = option(5, "Jobs of each way.")

    def run(self, told: Told = untold) -> "RecoveryReport":
        """Let all ways take turns and return the report."""
        names, why_not = (PEER, *(self.strategies or STRATEGIES)), dict[str, str]()
        if not recovery_jobs.has_horovod():
            built = [PEER, *(name for name in names if name.startswith("ring"))]
            why_not = dict.fromkeys(built, "Horovod is not installed; `tfdist build horovod` builds it")

        asked = Kills(**{one.name: getattr(self, one.name) for one in fields(Kills)})

        def measure(name: str, number: int) -> Job | None:
            if name in why_not:
                return None
            with tempfile.TemporaryDirectory(prefix="tfdist-bench-") as folder:
                try:
                    if name == PEER:
                        return recovery_jobs.horovod_job(asked, Path(folder))
                    return recovery_jobs.tfdist_job(asked, name, Path(folder))
                except TfdistError as error:
                    if name != PEER:
                        raise
                    why_not[name] = str(error)  # the ways of tfdist are measured anyway
                    return None

        with machine.observed() as about:
            found = in_turns(names, measure, count=self.rounds, told=told)
        done = {name: [job for job in each if job is not None] for name, each in found.items()}
        states = {(job.variables, job.bytes) for each in done.values() for job in each}
        if len(states) > 1:
            raise TfdistError(f"the states differ, as (variables, bytes): {sorted(states)}; nothing can be compared.")
        ways = [Way(name=name, jobs=done[name], why_not=why_not.get(name, "")) for name in names]
        return RecoveryReport(setup=self, ways=ways, machine=about)


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to continue after a death."""

    name: str  # `PEER`, or the strategy
    jobs: Sequence[Job] = field(default_factory=list)  # the results of each job, one per round
    why_not: str = ""  # the reason why it could not be measured; empty if it was

    @property
    def noticed(self) -> list[float]:
        """Seconds from each kill until it was noticed."""
        return [seconds for job in self.jobs for seconds in job.noticed]

    @property
    def recovered(self) -> list[float]:
        """Seconds from each kill until all continuing workers had ended a step."""
        return [seconds for job in self.jobs for seconds in job.recovered]

    @property
    def repeated(self) -> list[int]:
        """Steps that were repeated after each kill."""
        return [steps for job in self.jobs for steps in job.repeated]


@dataclass(frozen=True, kw_only=True)
class RecoveryReport(Report):
    """All measurements."""

    setup: RecoveryBench
    ways: Sequence[Way]  # all of them, including those that could not be measured

    def way(self, name: str) -> Way:
        """Return one way."""
        return next(way for way in self.ways if way.name == name)

    def times_of_peer(self, way: Way) -> Quartiles | None:
        """Return the peer's time to recover over this way's, round by round; None if one was not measured."""
        peer = self.way(PEER)
        if peer.why_not or way.why_not:
            return None
        pairs = zip(peer.jobs, way.jobs, strict=True)
        return quartiles([quartiles(a.recovered).median / quartiles(b.recovered).median for a, b in pairs])

    def derived(self) -> dict[str, Any]:
        results: list[Mapping[str, Any]] = []
        for way in self.ways:
            if way.why_not:
                results.append({"way": way.name, "why not": way.why_not})
                continue
            results.append(
                {
                    "way": way.name,
                    "noticed": quartiles(way.noticed),
                    "recovered": quartiles(way.recovered),
                    "recovered at most": max(way.recovered),
                    "repeated": quartiles(way.repeated),
                    "peer over this": self.times_of_peer(way),
                }
            )
        return {"results": results}

    def shown(self) -> Iterator[Table | str]:
        head = ("kills", "noticed, ms", "step again, s", "at most", "peer", "repeated", "workers after", "ms per step")
        yield Table(("", *head), [[way.name, *_cells(self, way)] for way in self.ways if not way.why_not])
        yield from (f"{way.name} was not measured: {way.why_not}" for way in self.ways if way.why_not)
        job, setup = next((job for way in self.ways for job in way.jobs), None), self.setup
        if job is not None:
            yield (
                f"{job.variables} variables, {job.bytes:,} bytes; 2 workers, {setup.batch_size} examples in a step; "
                f"killed at step {setup.first}, and {setup.every} steps after each recovery; {setup.rounds} rounds; "
                "median [lower-upper quartile]."
            )
        yield self.ran_on()


def _cells(report: RecoveryReport, way: Way) -> list[str]:
    noticed, repeated = quartiles([1000 * seconds for seconds in way.noticed]), quartiles(way.repeated)
    step = quartiles([1000 * job.step_seconds for job in way.jobs])
    return [
        str(len(way.recovered)),
        f"{noticed.median:.0f} [{noticed.lower:.0f}-{noticed.upper:.0f}]",
        str(quartiles(way.recovered)),
        f"{max(way.recovered):.2f}",
        "-" if way.name == PEER else str(report.times_of_peer(way) or "-"),
        f"{repeated.median:g}, {max(way.repeated)}",
        str(way.jobs[-1].workers),
        f"{step.median:.1f} [{step.lower:.1f}-{step.upper:.1f}]",
    ]


command = suite_command(
    "recovery",
    RecoveryBench,
    examples={
        "python -m benchmarks recovery": "about 20 minutes on 2 cores",
        "python -m benchmarks recovery --strategy ring --rounds 1": "one strategy, beside Horovod elastic",
        "python -m benchmarks recovery --json recovery.json": "for programs",
    },
    page="benchmarks-recovery",
)
