"""Cause one fault after another in a job of two workers, and check times, memory, threads and the result.

A worker is killed, stopped, hangs, raises or ends, at random steps; after each fault all must step again. At every
start, the memory, threads and descriptors of the agent, of the workers, and of the process from which workers are
forked are noted. The result must be that of a run without any fault, to the bit, and nothing may be left behind. Then
the number of workers changes again and again, by requests and by SIGTERM to workers.

    python tests/soak/recover.py --faults 200 --resizes 20
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfdist.monitor import fault_plan
from tfdist.monitor.fault_plan import FaultPlan
from tfdist.variables import FAULTS_LOG

ROOT = Path(__file__).parents[2]
KINDS = [*4 * ["kill"], *2 * ["exception"], "exit", "stop", "hang"]
ROWS, BATCH = 320, 16
EVERY = 5
BETWEEN_SECONDS = 0.3  # from all stepping to the next change of the number of workers
COLUMNS = ("MB", "threads", "descriptors")


def train(result: str, backup: str, steps: int) -> None:
    """Train so many steps in epochs of 20, and leave what has come of it."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfdist
    from tfdist.callbacks import BackupAndRestore

    keras.utils.set_random_seed(7)
    tf.config.experimental.enable_op_determinism()
    x = np.random.default_rng(0).normal(size=(ROWS, 8)).astype("float32")
    strategy = tfdist.strategies.from_environment()  # before anything else that TensorFlow does
    data = tf.data.Dataset.from_tensor_slices((x, x[:, :1] * 2)).shuffle(ROWS, seed=3).batch(BATCH)
    with strategy.scope():
        dense, norm, drop = keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)
        model = keras.Sequential([keras.Input((8,)), dense, norm, drop, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"])
    callbacks = [BackupAndRestore(backup, save_freq=50)]
    history = model.fit(data, epochs=steps * BATCH // ROWS, verbose=0, callbacks=callbacks)
    if not tfdist.cluster.from_environment().is_chief:
        return
    variables = [np.asarray(variable.numpy()) for variable in (*model.variables, *model.optimizer.variables)]
    content = {
        "digest": hashlib.sha256(b"".join(variable.tobytes() for variable in variables)).hexdigest(),
        "steps": int(model.optimizer.iterations.numpy()),
        "history": history.history,
    }
    Path(result).write_text(json.dumps(content))


class Job:
    """A `tfdist run` in a folder of its own."""

    def __init__(self, folder: Path, steps: int, *options: str, environment: dict[str, str] | None = None) -> None:
        self.folder, self.events, self.result = folder, folder / "events", folder / "result"
        self.temporary = folder / "temporary"
        self.temporary.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--event-file", str(self.events), *options]
        command += [__file__, "--train", str(self.result), str(folder / "backup"), str(steps)]
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFDIST_", "TF_CONFIG"))}
        kept |= {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
        kept |= {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1", "TMPDIR": str(self.temporary)}
        output = (folder / "output").open("ab")
        with output:
            self.process = subprocess.Popen(command, env=kept | (environment or {}), stdout=output, stderr=output)

    def read(self) -> list[dict[str, Any]]:
        """Return the events so far."""
        return fault_plan.lines(self.events.read_text()) if self.events.exists() else []

    def starts(self, deadline: float) -> Iterator[tuple[dict[str, Any], list[int]]]:
        """Yield each event that all step, with the workers' processes, until the job has ended or it is too late."""
        seen = 0
        while self.process.poll() is None:
            if time.monotonic() > deadline:
                return
            events = self.read()
            for place, event in list(enumerate(events))[seen:]:
                if event["event"] == "stepping":
                    yield event, next(one for one in reversed(events[:place]) if one["event"] == "started")["pids"]
            seen = len(events)
            time.sleep(0.02)

    def end(self, *, grace_seconds: float) -> int:
        """Wait for the end; ask for it where it does not come."""
        try:
            return self.process.wait(grace_seconds)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            return self.process.wait(60)

    def left(self) -> list[str]:
        """Return the leftovers of the job: processes, shared memory, files."""
        ids = {str(event["job"]) for event in self.read()}
        left = [f"process {pid}" for pid in running(ids)]
        left += [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if any(one in name for one in ids)]
        return left + [f"temporary/{name}" for name in os.listdir(self.temporary)]


def running(job_ids: set[str]) -> list[int]:
    """The processes that belong to these jobs."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and any(one.encode() in (entry / "environ").read_bytes() for one in job_ids):
                found.append(int(entry.name))
    return found


def weight(pid: int) -> tuple[float, int, int]:
    """Resident megabytes, threads and descriptors of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    counts = (len(os.listdir(f"/proc/{pid}/{what}")) for what in ("task", "fd"))
    threads, descriptors = counts
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6, threads, descriptors


def children(pid: int) -> list[int]:
    """Its children, whichever thread has made them."""
    found = [path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for each in found for child in each]


def weigh(agent: int, workers: Sequence[int]) -> dict[str, tuple[float, int, int]]:
    """The weights of a job's processes; of the workers, the larger ones."""
    found = {}
    with contextlib.suppress(OSError, ValueError):  # one may be killed at this moment
        found["agent"] = weight(agent)
        others = [pid for pid in children(agent) if pid not in workers]
        forks = [pid for pid in others if b"forking" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if forks:  # the first is the process itself, the others are forked from it and wait
            found["fork server"] = weight(min(forks))
        each = [weight(pid) for pid in workers]
        found["workers"] = (max(one[0] for one in each), max(one[1] for one in each), max(one[2] for one in each))
    return found


def undisturbed(folder: Path, strategy: str, steps: int) -> str:
    job = Job(folder, steps, "--strategy", strategy)
    if code := job.end(grace_seconds=600):
        raise SystemExit(f"the run without faults ended with {code}; see {folder / 'output'}")
    return job.result.read_text()


def with_faults(folder: Path, strategy: str, plan: FaultPlan, steps: int, minutes: float) -> dict[str, Any]:
    """Run with the faults; where the time is not enough for all, stop, and go on without the rest."""
    log, weights = folder / "faults", list[dict[str, tuple[float, int, int]]]()
    options = ("--strategy", strategy, "--max-restarts", str(plan.restarts), "--stall-seconds", "60")
    begin = time.monotonic()
    job = Job(folder, steps, *options, environment={**plan.to_environment(), FAULTS_LOG.name: str(log)})
    try:
        for _, workers in job.starts(begin + 60 * minutes):
            weights.append(weigh(job.process.pid, workers))
    finally:
        code = job.end(grace_seconds=0 if job.process.poll() is None else 5)
    seconds = time.monotonic() - begin
    happened, events = fault_plan.lines(log.read_text()), job.read()
    found = fault_plan.verdicts(plan, happened, events)
    if code == 143:
        rest = Job(folder, steps, "--strategy", strategy, "--max-restarts", "1")
        code = rest.end(grace_seconds=300)
    return {
        "code": code,
        "seconds": seconds,
        "verdicts": [one for one in found if one.step is not None],
        "weights": weights,
        "result": job.result.read_text() if job.result.exists() else "",
        "left": job.left(),
    }


def with_resizes(folder: Path, strategy: str, resizes: int, seed: int, minutes: float) -> dict[str, Any]:
    """Run while the number of workers is changed; return what became of each change."""
    chance, begin, left = random.Random(seed), time.monotonic(), resizes
    steps = 20 * 50 * max(resizes, 1)
    options = ("--strategy", strategy, "--min-workers", "1", "--max-workers", "3", "--max-restarts", "3")
    job, asked = Job(folder, steps, *options), list[str]()
    try:
        for event, workers in job.starts(begin + 60 * minutes):
            if not left:
                break
            left -= 1
            time.sleep(BETWEEN_SECONDS)
            more = event["workers"] == 1 or (event["workers"] == 2 and chance.random() < 0.5)
            asked.append("one more" if more else chance.choice(["one fewer", "SIGTERM to a worker"]))
            with contextlib.suppress(ProcessLookupError):
                if asked[-1] == "SIGTERM to a worker":
                    os.kill(chance.choice(workers), signal.SIGTERM)
                else:
                    job.process.send_signal(signal.SIGUSR1 if more else signal.SIGUSR2)
    finally:
        code = job.end(grace_seconds=0)
    events = job.read()
    again = [event for event in events if event["event"] == "stepping" and event.get("seconds") is not None]
    return {
        "asked": asked,
        "code": code,
        "failed": [event["text"] for event in events if event["event"] == "failed"],
        "seconds": [event["seconds"] for event in again],
        "lost": sum(event["lost"] for event in again),
        "left": job.left(),
    }


def rows(found: dict[str, Any], faults_asked: int, equal: bool) -> Iterator[str]:
    """The report on faults."""
    verdicts, by_kind = found["verdicts"], defaultdict(list)
    for one in verdicts:
        by_kind[one.fault.kind].append(one)
    yield "| fault | happened | all stepped again | found after, s | all step again after, s | steps repeated |"
    yield "|---|---|---|---|---|---|"
    for kind, each in [*sorted(by_kind.items()), ("all", verdicts)]:
        again = [one.recovered_after for one in each if one.recovered_after is not None]
        lost = [one.lost or 0 for one in each if one.recovered_after is not None]
        seen = middle_and_most([one.found_after for one in each if one.found_after is not None])
        yield (
            f"| {kind} | {len(each)} | {len(again)} | {seen} | {middle_and_most(again)} "
            f"| {sum(lost)}, {max(lost, default=0)} at most |"
        )
    yield ""
    yield "| process | " + " | ".join(f"{name}: first, last, most" for name in COLUMNS) + " |"
    yield "|---|---|---|---|"
    for process in ("agent", "fork server", "workers"):
        weights = [one[process] for one in found["weights"] if process in one][2:]  # the process is there by then
        cells = [growth([one[column] for one in weights]) for column in range(len(COLUMNS))] if weights else []
        yield f"| {process} | {' | '.join(cells)} |"
    yield ""
    yield f"{len(verdicts)} of {faults_asked} faults in {found['seconds']:.0f} s; ended with code {found['code']}"
    yield f"equal to the run without faults: {'yes, to the bit' if equal else 'NO'}"
    yield f"left: {found['left'] or 'nothing'}"


def middle_and_most(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}, {max(values):.2f} at most" if values else "-"


def growth(values: Sequence[float]) -> str:
    """Medians of the first and of the last ten, and the most."""
    first, last = statistics.median(values[:10]), statistics.median(values[-10:])
    return f"{first:.0f}, {last:.0f}, {max(values):.0f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faults", type=int, default=200, help="default: %(default)s")
    parser.add_argument("--resizes", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--strategy", default="multi-worker", help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the faults; default: %(default)s")
    parser.add_argument("--minutes", type=float, default=60.0, help="for the faults, at most; default: %(default)s")
    parser.add_argument("--train", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train[0], options.train[1], int(options.train[2]))
        return
    plan = FaultPlan.made_up(kinds=KINDS, count=options.faults, every=EVERY, workers=2, seed=options.seed)
    needed = sum(fault.step or 0 for fault in plan.faults) + 20  # a start gets no further than to its fault
    steps = -(-needed // 20) * 20
    with tempfile.TemporaryDirectory(prefix="tfdist-soak-") as name:
        expected = undisturbed(Path(name, "never"), options.strategy, steps)
        found = with_faults(Path(name, "faults"), options.strategy, plan, steps, options.minutes)
        equal = found["result"] == expected
        print(f"{options.strategy}, 2 workers, {steps} steps, load {os.getloadavg()[0]:.1f}")
        print(*rows(found, options.faults, equal), sep="\n", flush=True)
        bad = [one for one in found["verdicts"] if one.recovered_after is None]
        print(*(fault_plan.table([one]) for one in bad), sep="\n")
        if not equal or bad or found["left"]:
            print((Path(name, "faults", "output")).read_text()[-4000:], file=sys.stderr)
        changes = None
        if options.resizes:
            changes = with_resizes(Path(name, "resizes"), options.strategy, options.resizes, options.seed, 10.0)
            print(f"changes of the number of workers: {dict(Counter(changes['asked']))}")
            print(f"all step again after: {middle_and_most(changes['seconds'])}; {len(changes['seconds'])} times")
            print(f"failures: {changes['failed'] or 'none'}; steps repeated: {changes['lost']}; code {changes['code']}")
            print(f"left: {changes['left'] or 'nothing'}", flush=True)
    is_good = equal and not bad and not found["left"] and not (changes and (changes["failed"] or changes["left"]))
    sys.exit(0 if is_good else 1)


if __name__ == "__main__":
    main()
