"""The rate of verdicts that name the right worker and the right cause, with injections in random order.

In each case one part takes longer, by a share of a step, or nothing does. The part is the input, the forward pass, the
backward pass, the update or garbage collection of one of two workers. It can also be a process that takes a worker's
processor away, or the delay or the bandwidth of its link. The verdict sees only the workers' records. If the link
between two workers is slow, nobody can tell whose link it is, so the right verdict is "communication" of no worker.
Each strategy has two pairs of workers, each worker with a processor of its own: on this host, and in network namespaces
(which need root). As root it runs with the highest priority, so that other programs take little from it.

Workers of parameter servers run no script. There a pass works longer by a variable that each worker has for itself, and
the update by one of the server's variables. They exchange only with the server, so the right verdict is "communication"
of the worker whose link is slow. Input, garbage and update belong to the chief, so the verdict names no worker. A
worker's processor is taken away only where chief and server have other processors; otherwise every worker would wait.

    python -m tests.soak.injections
    python -m tests.soak.injections --strategies ring --shares 0.25 --rounds 3 --keep cases.npz
    python -m tests.soak.injections --judge cases.npz       # the records, judged by the current verdict
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tfdist.bench.workers import delays, lanes, slow_network
from tfdist.cluster import ports
from tfdist.cluster.cluster_values import TaskId
from tfdist.jobs.plan.job_plan import task_command, tf_config
from tfdist.monitor.recording.rows import WIDTH, Column
from tfdist.monitor.verdict.job_bound import Bound, Verdict, judge, read_folder
from tfdist.monitor.verdict.step_parts import Part, of_workers, timeline
from tfdist.variables import MONITOR_DIR

WORKERS = 2
WARM = 5  # first steps of a case that are not looked at
PARTS = {
    **{name: Part[name.upper()] for name in ("input", "forward", "backward", "update")},
    "gc": Part.PYTHON,
    "steal": Part.COMPUTE,
}
LINKS = ("delay", "bandwidth")
PARAMETER_SERVER = "parameter-server"
# what happens to a chief, and what is told of it
OF_A_CHIEF = {"input": Bound.INPUT, "gc": Bound.PYTHON, "update": Bound.UPDATE}
# and what to its workers
OF_ITS_WORKERS = ("forward", "backward", "steal", *LINKS)
# whose length depends on the machine: what is asked for is a guess until it was measured, so many times
CALIBRATIONS = 8
NEAR = 0.15  # of what is asked for: near enough
LEAST, TRIES = 0.6, 3  # of what is asked for; else a case is run again, so often
SMALLEST = 0.1
MEASURED = ("forward", "backward", "update")
CAUSES = ("none", *PARTS, *LINKS)
RATE = 1e9  # bits per second of a link
SLICE_SECONDS = 0.004  # for which a processor is taken away at a time


@dataclass(frozen=True)
class Case:
    """One injection.

    Attributes:
        strategy: of the job.
        cause: of `CAUSES`.
        worker: where.
        share: of a step, by which it is longer.
        is_linked: whether the workers have a network between them.
    """

    strategy: str
    cause: str
    worker: int
    share: float
    is_linked: bool


@contextlib.contextmanager
def stealing(processor: int, share: float) -> Iterator[None]:
    """Take so much of a processor's time that what runs there takes longer by a share."""
    thief = multiprocessing.get_context("fork").Process(target=_steal, args=(processor, share), daemon=True)
    thief.start()
    try:
        yield
    finally:
        thief.kill()
        thief.join()


def _steal(processor: int, share: float) -> None:
    os.sched_setaffinity(0, {processor})
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))  # it has it when it wants it
    while os.getppid() != 1:
        end = time.thread_time() + SLICE_SECONDS * share
        while time.thread_time() < end:
            pass
        time.sleep(SLICE_SECONDS)


def come_first() -> None:
    """Give this process and all that it has started the highest priority, where this user may.

    Linux weighs processes within their session alone, and sessions by a number of their own.
    """
    me = psutil.Process()
    for one in (me, *me.children(recursive=True)):
        with contextlib.suppress(OSError, psutil.Error):
            for thread in one.threads():
                os.setpriority(os.PRIO_PROCESS, thread.id, -20)
            Path(f"/proc/{one.pid}/autogroup").write_text("-20")


class Ports:
    """Hands on what comes in at workers' ports, late where it is to be; workers that hear nothing give each other up.

    Args:
        hub: the namespace that has the ports.
    """

    def __init__(self, hub: str) -> None:
        self._hub = hub
        self._held: dict[int, tuple[float, contextlib.ExitStack]] = {}

    def late(self, worker: int, seconds: float) -> None:
        """Delay incoming messages at a worker's port by so many seconds from now on."""
        if worker in self._held:
            before, held = self._held[worker]
            if before == seconds:
                return
            held.close()
        held = contextlib.ExitStack()
        ports = [(f"port{worker}", f"wire{worker}")]
        held.enter_context(delays.holding(["ip", "netns", "exec", self._hub], seconds, ports))
        self._held[worker] = seconds, held

    def close(self) -> None:
        """Hand nothing on any more."""
        for _, held in self._held.values():
            held.close()


@contextlib.contextmanager
def tasks(network: slow_network.Network) -> Iterator[dict[str, Any]]:
    """Start a parameter server here and a worker in each namespace; yield the chief's TF_CONFIG, and processes."""
    chief, server, *free = ports.free_ports(2 + WORKERS)
    cluster = {
        "chief": [f"{network.gateway}:{chief}"],
        "worker": [f"{host}:{port}" for host, port in zip(network.hosts, free, strict=True)],
        "ps": [f"{network.gateway}:{server}"],
    }
    with contextlib.ExitStack() as stack:
        pids = []
        for job, index in [*(("worker", worker) for worker in range(WORKERS)), ("ps", 0)]:
            inside = network.inside(index) if job == "worker" else []
            environment = {**os.environ, "TF_CONFIG": tf_config(cluster, TaskId(type=job, index=index))}
            command = [*inside, *task_command(python=sys.executable, agent_pid=os.getpid())]
            one = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, start_new_session=True)
            stack.callback(one.wait)
            stack.callback(one.kill)
            pids.append(one.pid)  # `ip netns exec` becomes the command
        yield {"config": tf_config(cluster, TaskId(type="chief", index=0)), "pids": pids}


class Pair:
    """Two workers of a strategy, here or with a network between them."""

    def __init__(
        self, strategy: str, processors: Sequence[int], steps: int, linked: tuple[slow_network.Network, Ports] | None
    ) -> None:
        self.processors, self.steps = list(processors), steps
        self._network, self._ports = linked or (None, Ports(""))
        network = self._network
        self._stack = contextlib.ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._is_chief = strategy == PARAMETER_SERVER
        environment = {MONITOR_DIR.name: str(self.folder), "TF_NUM_INTEROP_THREADS": "2"}
        self._tasks: dict[str, Any] = {}
        if self._is_chief:
            if network is not None:
                self._tasks = self._stack.enter_context(tasks(network))
            lane = lanes.Lane("chief", workers=1, environment=environment)
        else:
            lane = lanes.Lane(strategy, workers=WORKERS, environment=environment, network=network)
        self.lane = self._stack.enter_context(lane)
        self.strategy = strategy
        # of what is asked for, to make a step longer by this share
        self._scales: dict[tuple[str, float], float] = {}
        self.step = 0.0

    def prepare(self, shares: Sequence[float], causes: Sequence[str]) -> None:
        with self._changed("none", 0, 0.0):
            prepare = "prepare_chief" if self._is_chief else "prepare"
            self._call(prepare, strategy=self.strategy, processors=self.processors, steps=10, **self._tasks)
        self.recorded("none", 0, 0.0)
        self.step = self.length(self.recorded("none", 0, 0.0))
        for cause in LINKS if self._network else MEASURED if self._is_chief else ():
            for share in shares if cause in causes else ():
                self._calibrate(cause, share)

    def _calibrate(self, cause: str, share: float) -> None:
        """Find the scale of a cause that makes a step longer by a share; the two are not proportional."""
        tried: dict[float, float] = {}
        for _ in range(CALIBRATIONS):
            scale = self._scales[cause, share] = next_scale(tried, share)
            usual = self.length(self.recorded("none", 0, 0.0))  # each time: a machine is not always as fast
            tried[scale] = self.length(self.recorded(cause, 0, share)) / usual - 1
            if abs(tried[scale] / share - 1) < NEAR:
                break
        best = self._scales[cause, share] = min(tried, key=lambda scale: abs(tried[scale] - share))
        print(f"{self.strategy} {cause} of {share:.0%}: a step is longer by {tried[best]:.0%}", flush=True)

    def length(self, rows: dict[int, np.ndarray]) -> float:
        return float(np.median(timeline(rows).step))

    def recorded(self, cause: str, worker: int, share: float) -> dict[int, np.ndarray]:
        """Run a case; return the rows of each worker."""
        before = {rank: int(rows[-1, Column.SEQUENCE]) for rank, rows in read_folder(self.folder).items()}
        inside = cause if cause in PARTS and cause != "steal" else "none"
        seconds = self.step * share * self._scales.get((cause, share), 1.0)
        with self._changed(cause, worker, seconds):
            run = "run_chief" if self._is_chief else "run"
            self._call(run, where=inside, worker=worker, seconds=seconds, steps=self.steps + WARM)
        found = read_folder(self.folder)
        return {rank: rows[rows[:, Column.SEQUENCE] > before.get(rank, 0)][WARM:] for rank, rows in found.items()}

    def case(self, one: Case) -> tuple[Case, dict[int, np.ndarray]]:
        """Run a case, again if steps were not longer by what was asked for: a machine is not always as fast.

        If they never were, it is returned as a case of the smallest share.
        """
        if (one.cause, one.share) not in self._scales:
            return one, self.recorded(one.cause, one.worker, one.share)
        for _ in range(TRIES):
            rows = self.recorded(one.cause, one.worker, one.share)
            made = self.length(rows) / self.length(self.recorded("none", 0, 0.0)) - 1
            print(f"  {self.strategy:12} {one.cause:9} {one.worker} {one.share:4.0%} is {made:4.0%}", flush=True)
            if made > LEAST * one.share:
                return one, rows
        return replace(one, share=min(one.share, SMALLEST)), rows

    @contextlib.contextmanager
    def _changed(self, cause: str, worker: int, seconds: float) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if cause == "steal":
                stack.enter_context(stealing(self.processors[worker], seconds / self.step))
            if self._network is not None:
                for rank in range(WORKERS):
                    self._ports.late(rank, seconds if cause == "delay" and rank == worker else 0.0)
                if cause == "bandwidth":
                    stack.enter_context(self._narrow(worker, seconds))
            come_first()
            yield

    @contextlib.contextmanager
    def _narrow(self, worker: int, seconds: float) -> Iterator[None]:
        assert self._network is not None
        sent = 8 * 4 * (64 * 256 + 256 * 256 + 256 * 10)  # bits of a step, about
        self._limit(worker, sent / (sent / RATE + seconds))
        try:
            yield
        finally:
            self._limit(worker, RATE)

    def _limit(self, worker: int, rate: float) -> None:
        assert self._network is not None
        for space, device in (
            (self._network.namespace(worker), slow_network.DEVICE),
            (self._network.hub, f"port{worker}"),
        ):
            change = ["tc", "-n", space, "qdisc", "change", "dev", device, "root", "handle", "1:"]
            slow_network._run([*change, "tbf", "rate", f"{rate / 1e3:.0f}kbit", "burst", "65536", "latency", "100ms"])

    def _call(self, function: str, **arguments: Any) -> None:
        self.lane.call(f"tests.soak.injected:{function}", **arguments)

    def close(self) -> None:
        self._stack.close()


def next_scale(tried: dict[float, float], share: float) -> float:
    """Return what to try next, given by what share each that was tried has made a step longer."""
    below = [scale for scale, made in tried.items() if made < share]
    above = [scale for scale, made in tried.items() if made >= share]
    if below and above:
        return (max(below) * min(above)) ** 0.5
    if not tried:
        return 1.0
    last = max(below) if below else min(above)
    return last * min(share / max(tried[last], 0.2 * share), 3.0)


def told(verdict: Verdict) -> str:
    """Return a verdict in a word or two."""
    if verdict.rank is not None and verdict.part is not None:
        return f"{verdict.rank} {verdict.part.label}"
    return verdict.bound.name.lower()


def is_right(case: Case, verdict: Verdict) -> tuple[bool, bool]:
    """Return whether the worker is right, and whether the cause is."""
    if case.cause == "none":
        return verdict.rank is None, verdict.rank is None
    if case.strategy == PARAMETER_SERVER and case.cause in OF_A_CHIEF:
        return verdict.rank is None, verdict.bound is OF_A_CHIEF[case.cause]
    if case.cause in LINKS and case.strategy != PARAMETER_SERVER:
        return verdict.rank is None, verdict.bound is Bound.COMMUNICATION
    part = Part.COMMUNICATION if case.cause in LINKS else PARTS[case.cause]
    return verdict.rank == case.worker, verdict.bound is Bound.STRAGGLER and verdict.part is part


class Results:
    """The verdicts on all cases, and how many are right."""

    def __init__(self) -> None:
        self.right: Counter[tuple[str, float, str]] = Counter()
        self.said: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []

    def add(self, case: Case, rows: dict[int, np.ndarray]) -> None:
        found = timeline(of_workers(rows))
        verdict = judge(found)
        worker, cause = is_right(case, verdict)
        share = case.share if case.cause != "none" else 0.0
        for strategy in (case.strategy, "all"):
            right = {"worker": worker, "cause": cause, "both": worker and cause, "cases": True}
            self.right.update({(strategy, share, name): int(is_so) for name, is_so in right.items()})
        if not (worker and cause):
            self.wrong.append(f"{case.strategy} {case.cause} of worker {case.worker}, {share:.0%}: {told(verdict)}")
        said = told(verdict)
        if verdict.rank is not None:
            said = said[2:] if verdict.rank == case.worker else f"WRONG {said[2:]}"
        self.said[case.cause, said] += 1
        means = " ".join(f"{part.label[:5]} {1e3 * verdict.means[:, part].mean():.1f}" for part in Part)
        waits = "/".join(f"{1e3 * one:.1f}" for one in verdict.means[:, Part.WAIT])
        print(f"  {case.strategy:12} {case.cause:9} {case.worker} {case.share:4.0%} "
              f"{'right' if worker and cause else 'WRONG'}  {told(verdict):18} {1e3 * verdict.step_seconds:5.1f} ms, "
              f"won {verdict.won:4.0%}  wait {waits}  {means}", flush=True)  # fmt: skip

    def show(self) -> None:
        for strategy, share in sorted({key[:2] for key in self.right}):
            count = self.right[strategy, share, "cases"]
            rates = ", ".join(f"{name} {self.right[strategy, share, name]}" for name in ("both", "worker", "cause"))
            print(f"{strategy:18} {share:4.0%}: of {count:3} right: {rates}")
        print("\n".join(f"wrong: {one}" for one in self.wrong))
        columns = sorted({said for _, said in self.said})
        print(f"{'injected / told':16}" + "".join(f"{column:>15}" for column in columns))
        for cause in CAUSES:
            print(f"{cause:16}" + "".join(f"{self.said[cause, column] or '.':>15}" for column in columns))


def cases_of(
    strategies: Sequence[str], shares: Sequence[float], rounds: int, causes: Sequence[str], *, is_wide: bool
) -> list[Case]:
    """Return the cases; is_wide: there are processors beside those of workers."""
    found = []
    has_links = any(one in LINKS for one in causes)
    for strategy in strategies:
        for cause in causes:
            of_a_chief = "none", *OF_A_CHIEF, *(one for one in OF_ITS_WORKERS if one != "steal" or is_wide)
            if strategy == PARAMETER_SERVER and cause not in of_a_chief:
                continue
            for share in shares:
                for worker in range(WORKERS):
                    is_linked = cause in LINKS or (cause == "none" and worker > 0 and has_links)
                    found += rounds * [Case(strategy, cause, worker, share, is_linked)]
    return found


def run(options: argparse.Namespace) -> None:
    processors = sorted(os.sched_getaffinity(0))
    cases = cases_of(
        options.strategies, options.shares, options.rounds, options.causes, is_wide=len(processors) > WORKERS
    )
    random.Random(options.seed).shuffle(cases)
    results, kept = Results(), []
    with contextlib.ExitStack() as stack:
        pairs: dict[tuple[str, bool], Pair] = {}
        linked: tuple[slow_network.Network, Ports] | None = None
        if any(case.is_linked for case in cases):
            network = stack.enter_context(_network(slow_network.EmulatedLink(rate="1gbit", delay_ms=0.001)))
            linked = network, stack.enter_context(contextlib.closing(Ports(network.hub)))
        for strategy, is_linked in dict.fromkeys((case.strategy, case.is_linked) for case in cases):
            pair = Pair(strategy, processors, options.steps, linked if is_linked else None)
            stack.callback(pair.close)
            with _alone(pair, pairs):
                pair.prepare(options.shares, options.causes)
            pairs[strategy, is_linked] = pair
            where = "with links" if is_linked else "on this host"
            print(f"{strategy} {where}: a step takes {1e3 * pair.step:.1f} ms", flush=True)
        began = time.monotonic()
        for case in cases:
            if time.monotonic() - began > options.seconds:
                break
            pair = pairs[case.strategy, case.is_linked]
            with _alone(pair, pairs):
                made, rows = pair.case(case)
            results.add(made, rows)
            kept.append((made, rows))
            if options.keep:
                keep(options.keep, kept)
    results.show()


@contextlib.contextmanager
def _network(link: slow_network.EmulatedLink) -> Iterator[slow_network.Network]:
    """Yield a network in which nothing hands on what comes in at the ports: each case does."""
    held = slow_network._late
    slow_network._late = lambda made, of: contextlib.nullcontext()
    try:
        with slow_network.network(link, WORKERS) as made:
            yield made
    finally:
        slow_network._late = held


@contextlib.contextmanager
def _alone(pair: Pair, pairs: dict[tuple[str, bool], Pair]) -> Iterator[None]:
    with lanes.turn(pair.lane, [one.lane for one in pairs.values()]):
        yield


def keep(path: str, kept: list[tuple[Case, dict[int, np.ndarray]]]) -> None:
    arrays = {f"{number}-{rank}": found for number, (_, rows) in enumerate(kept) for rank, found in rows.items()}
    with open(path, "wb") as file:
        np.savez_compressed(file, cases=json.dumps([asdict(case) for case, _ in kept]), **arrays)


def judge_kept(paths: Sequence[str]) -> None:
    results = Results()
    for path in paths:
        with np.load(path) as file:
            for number, case in enumerate(json.loads(str(file["cases"]))):
                rows = {rank: file[f"{number}-{rank}"] for rank in range(WORKERS) if f"{number}-{rank}" in file}
                assert all(found.shape[1] == WIDTH for found in rows.values())
                results.add(Case(**case), rows)
    results.show()


def main() -> None:
    """Run all cases, or judge what was recorded."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=["multi-worker", "ring", PARAMETER_SERVER])
    parser.add_argument("--shares", nargs="+", type=float, default=[0.1, 0.25, 0.5])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seconds", type=float, default=86_400.0, help="after which no further case is run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--causes", nargs="+", choices=CAUSES, default=CAUSES, help="links need root")
    parser.add_argument("--keep", help="a file for what was recorded")
    parser.add_argument("--judge", nargs="+", help="files of such a kind: nothing is run")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left then either
    if options.judge:
        judge_kept(options.judge)
    else:
        run(options)


if __name__ == "__main__":
    main()
