"""Train for an hour without a fault, and report every alert, and the load on the processors at that time.

Two workers reduce over the native engine. A step works for ten milliseconds and sleeps for ninety, so that it leaves
most of a machine to others; `--busy` leaves out the sleep. As root it runs with the highest priority. For each alert
about a slow worker, Linux counts the time for which the threads of both workers were ready without a processor. If the
two times differ by half of the worker's delay, another program had taken the processor, and the alert is true.

    python -m tests.soak.calm --minutes 60
    python -m tests.soak.calm --minutes 10 --busy
"""

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil

from tests.soak.injections import come_first

ROOT = Path(__file__).parents[2]
WORKERS = 2
#: seconds for which each part of a step keeps the processor busy, and then sleeps
WORKING = {"forward": 0.003, "backward": 0.006, "update": 0.001}
ASLEEP = {"forward": 0.027, "backward": 0.054, "update": 0.009}
EPOCH_STEPS, BATCH, WIDTH = 300, 32, 128
LOOK_SECONDS, KEPT_SECONDS, SHOWN_SECONDS = 0.5, 180.0, 60.0
LATER_SECONDS = 300.0  # after which a job that does not end is killed

_SLOWER = re.compile(r"slower than the others by ([0-9.e+]+) ms in (\d+) steps")


def train(seconds: float, *, is_busy: bool) -> None:
    """Train in epochs until this much time has passed; what the workers run."""
    import keras
    import numpy as np

    import tfdist
    from tests.integration.cases.late import behind, network
    from tests.soak.injected import work

    def late(where: str) -> Any:
        def pause() -> np.int64:
            work(WORKING[where])
            if not is_busy:
                time.sleep(ASLEEP[where])
            return np.int64(0)

        return behind(pause)

    class Ends(keras.callbacks.Callback):
        began = time.monotonic()

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = time.monotonic() - self.began > seconds
            if self.model.stop_training:
                print(f"{(epoch + 1) * EPOCH_STEPS} steps", flush=True)

    keras.utils.set_random_seed(1)
    with tfdist.strategies.from_environment().scope():
        model = network(WIDTH, late)
    random = np.random.default_rng(0)
    examples = (
        random.standard_normal((EPOCH_STEPS * BATCH, 64), np.float32),
        random.integers(0, 10, EPOCH_STEPS * BATCH),
    )
    model.fit(*examples, batch_size=BATCH, epochs=1_000_000, verbose=0, callbacks=[Ends()])


class Looks:
    """Observations of a job's processors over the last minutes.

    Args:
        launcher: the process of `tfdist run`.
    """

    def __init__(self, launcher: int) -> None:
        self._launcher = psutil.Process(launcher)
        self._workers: list[psutil.Process] = []
        self._seen: deque[tuple[float, list[float], float]] = deque()

    def look(self) -> None:
        """Note how long the threads of each worker have waited for a processor, and what others have used."""
        if len(self._workers) < WORKERS:
            self._workers = self._find()
        now = time.monotonic()
        self._seen.append((now, [_waited(one.pid) for one in self._workers], self._others()))
        while self._seen[0][0] < now - KEPT_SECONDS:
            self._seen.popleft()

    def since(self, seconds: float) -> tuple[float, list[float], float]:
        """Return the length of the last so many seconds, the wait of each worker, and the use of other processes."""
        last = self._seen[-1]
        whole = [one for one in self._seen if len(one[1]) == len(last[1]) and one[0] >= last[0] - seconds]
        first = whole[0]
        waited = [after - before for before, after in zip(first[1], last[1], strict=True)]
        return last[0] - first[0], waited, last[2] - first[2]

    def _find(self) -> list[psutil.Process]:
        found = {}
        with contextlib.suppress(psutil.Error):
            for one in self._launcher.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    index = one.environ().get("TFDIST_WORKER_INDEX")
                    if index is not None:
                        found.setdefault(int(index), one)  # the first: its own children come after it
        return [found[index] for index in sorted(found)]

    def _others(self) -> float:
        """Return the CPU time of all other programs since the machine was started."""
        spent = psutil.cpu_times()
        mine = 0.0
        for one in self._workers:
            with contextlib.suppress(psutil.Error):
                times = one.cpu_times()
                mine += times.user + times.system
        return spent.user + spent.nice + spent.system + getattr(spent, "steal", 0.0) - mine


def _waited(pid: int) -> float:
    """Return for how many seconds the threads of a process have been ready, and had no processor."""
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            total += int(path.read_text().split()[1])
    return total / 1e9


def about(event: dict[str, Any], looks: Looks, step_seconds: float) -> str:
    """Return an alert with what speaks for it."""
    slower = _SLOWER.search(event["text"])
    seconds = float(slower[2]) * step_seconds + 2 if slower else SHOWN_SECONDS
    took, waited, others = looks.since(min(seconds, KEPT_SECONDS))
    steps = max(took / step_seconds, 1.0)
    text = ", ".join(f"worker {index} {1e3 * one / steps:.2f} ms of a step" for index, one in enumerate(waited))
    told = f"{event['text']}\n    ready without a processor: {text}; other programs used {others / took:.2f} processors"
    if slower and len(waited) == WORKERS:
        more = waited[event["worker"]] - waited[1 - event["worker"]]
        told += "\n    " + ("TRUE" if 1e3 * more / steps >= float(slower[1]) / 2 else "FALSE")
    return told


def run(minutes: float, *, is_busy: bool) -> int:
    """Run the job and print what it said; return how many alerts there were."""
    with tempfile.TemporaryDirectory() as folder:
        events, log = Path(folder, "events"), Path(folder, "log")
        command = [sys.executable, "-m", "tfdist", "run", "--monitor", "--strategy", "multi-worker", "-n", str(WORKERS)]
        command += ["--collectives", "native", "--event-file", str(events), __file__, "--minutes", str(minutes)]
        command += ["--train", *(["--busy"] if is_busy else [])]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_NUM_INTEROP_THREADS": "2"}
        with log.open("wb") as file:
            job = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            count = _follow(job, events, minutes)
        finally:
            if job.poll() is None:
                job.terminate()
            job.wait()
            print(log.read_text(errors="replace")[-4000:], flush=True)
        if job.returncode:
            raise SystemExit(f"the job ended with {job.returncode}")
        return count


def _follow(job: subprocess.Popen[bytes], path: Path, minutes: float) -> int:
    looks, read, alerts, shown = Looks(job.pid), 0, 0, SHOWN_SECONDS / 4 - SHOWN_SECONDS
    began = time.monotonic()
    step_seconds = sum(WORKING.values()) + sum(ASLEEP.values())
    while True:
        ended = job.poll() is not None
        passed = time.monotonic() - began
        if passed > 60 * minutes + LATER_SECONDS:
            raise SystemExit("the job did not end")
        looks.look()
        lines = path.read_text().splitlines()[read:] if path.exists() else []
        read += len(lines)
        for event in map(json.loads, lines):
            if event["event"] == "alert":
                alerts += 1
                print(f"{passed / 60:6.1f} min: {event['alert']}: {about(event, looks, step_seconds)}", flush=True)
            elif event["event"] == "verdict":
                print(f"verdict: {json.dumps(event)}", flush=True)
        if ended:
            print(f"{alerts} alerts in {passed / 60:.1f} minutes", flush=True)
            return alerts
        if passed - shown > SHOWN_SECONDS:
            shown = passed
            come_first()  # threads that were started since, too
            took, waited, others = looks.since(SHOWN_SECONDS)
            took = max(took, LOOK_SECONDS)
            text = ", ".join(f"{one / took:.3f}" for one in waited)
            print(f"{passed / 60:6.1f} min: {alerts} alerts; waited for a processor {text}; "
                  f"other programs used {others / took:.2f}", flush=True)  # fmt: skip
        time.sleep(LOOK_SECONDS)


def main() -> None:
    """Train in a worker, else run the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--busy", action="store_true", help="steps work, and do not sleep")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(60 * options.minutes, is_busy=options.busy)
        return
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # nothing is left then either
    sys.exit(1 if run(options.minutes, is_busy=options.busy) else 0)


if __name__ == "__main__":
    main()
