"""Kill a process with SIGKILL inside a save, many times, and check each time which checkpoint can be read.

A process saves one state after the other in the background, as training does; every number of a state is its step. At a
random moment of a save it is killed. Then the newest checkpoint must be intact, and be that of the killed save or of
the previous one, with the right numbers. A new process continues in the same directory.

    python tests/soak/kill_inside_save.py --kills 500 --megabytes 33
"""

import argparse
import json
import logging
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tfdist.checkpoint import Checkpoint, Store, Writer

ROOT = Path(__file__).parents[2]
ARRAYS = 12
SAVE_SECONDS = 120


class Announced(Store):
    """A store that says when a save begins and ends."""

    def save(self, step: int, arrays: Any, state: Any, **parts: Any) -> None:
        os.write(1, b"begin %d\n" % step)
        super().save(step, arrays, state, **parts)
        os.write(1, b"end %d\n" % step)


def numbers(step: int, megabytes: float) -> dict[str, Any]:
    size = int(megabytes * 1e6 / 4 / ARRAYS)
    return {f"weights/{i}": np.full(size, step, np.float32) for i in range(ARRAYS)}


def train(folder: str, megabytes: float, durable: bool) -> None:
    """Save for ever, from where the last one was killed."""
    store = Announced(folder, durable=durable)
    found = store.newest()
    step = found.step if found else 0
    writer = Writer(store, warn=sys.exit)
    while True:
        step += 1
        writer.submit(step, numbers(step, megabytes), {"step": step, "history": list(range(step % 100))})
        writer.wait()


def killed(folder: str, megabytes: float, durable: bool, *, saves: int, delay: float) -> tuple[int, int]:
    """Kill a training so many seconds into one of its saves; return the steps whose save began and ended last."""
    command = [sys.executable, __file__, "--train", folder, "--megabytes", str(megabytes)]
    command += [] if durable else ["--memory"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    begun = ended = -1
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        try:
            assert process.stdout is not None
            while saves:
                word, _, step = process.stdout.readline().partition(b" ")
                if not word:
                    raise RuntimeError(f"the training ended by itself, with {process.wait(SAVE_SECONDS)}")
                saves -= word == b"begin"
                begun, ended = (int(step), ended) if word == b"begin" else (begun, int(step))
            time.sleep(delay)
        finally:
            process.send_signal(signal.SIGKILL)
        for line in process.stdout:
            word, _, step = line.partition(b" ")
            begun, ended = (int(step), ended) if word == b"begin" else (begun, int(step))
    return begun, ended if ended >= 0 else begun - 1


def moment(folder: Path, begun: int, found: Checkpoint | None) -> str:
    """Return the moment of the save at which the process was killed."""
    if found is not None and found.step == begun:
        return "after it had its name"
    left = [path for path in folder.iterdir() if path.name.startswith(f".step-{begun:012d}")]
    if not left:
        return "before anything was written"
    files = {path.name for path in left[0].iterdir()}
    return "when all was written" if "manifest.json" in files else "while arrays were written"


def wrong(found: Checkpoint | None, begun: int, ended: int, megabytes: float, warned: list[str]) -> str:
    """Return what is wrong with the checkpoint or the warnings; empty if nothing is."""
    if found is None:
        return "no checkpoint is sound"
    if found.step not in {begun, ended}:
        return f"step {found.step} is read, {begun} was being saved"
    expected = numbers(found.step, megabytes)
    if found.arrays.keys() != expected.keys() or found.state["step"] != found.step:
        return "the state is another one"
    if any(not np.array_equal(found.arrays[name], array) for name, array in expected.items()):
        return "arrays of another step"
    return f"a warning: {warned[0]}" if warned else ""


class _Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def soak(folder: Path, kills: int, megabytes: float, durable: bool, seed: int) -> dict[str, Any]:
    """Kill until so many kills were inside a save, and return what was seen."""
    generator, kept = random.Random(seed), _Kept()
    logging.getLogger("tfdist").addHandler(kept)
    store, seconds = Store(folder, durable=durable), []
    for _ in range(3):
        begin = time.perf_counter()
        store.save(0, numbers(0, megabytes), {"step": 0})
        seconds.append(time.perf_counter() - begin)
    usual = statistics.median(seconds)
    moments, lost, bad, all_kills = Counter[str](), 0, list[str](), 0
    while moments.total() < kills:
        saves, delay = generator.randint(1, 3), generator.uniform(0, 1.6) * usual
        begun, ended = killed(str(folder), megabytes, durable, saves=saves, delay=delay)
        all_kills += 1
        kept.said.clear()
        found = store.newest()
        if reason := wrong(found, begun, ended, megabytes, kept.said):
            bad.append(reason)
        if begun != ended:
            moments[moment(folder, begun, found)] += 1
            lost += found is None or found.step != begun
        if sys.stderr.isatty():
            print(f"\r{moments.total()} of {kills}, {len(bad)} bad", end="", file=sys.stderr)
    last = (store.newest() or Checkpoint(step=0, digest="", state={}, arrays={})).step + 1
    store.save(last, numbers(last, megabytes), {"step": last})
    left = sorted(set(os.listdir(folder)) - {f"step-{step:012d}" for step in (last - 1, last)})
    return {
        "kills": all_kills,
        "inside a save": moments.total(),
        "bad": len(bad),
        "what was bad": dict(Counter(bad)),
        "left behind": left,
        "where": dict(moments),
        "the save before was read": lost,
        "seconds of a save": round(usual, 4),
        "megabytes": megabytes,
        "durable": durable,
        "seed": seed,
    }


def main() -> int:
    """Run it; the exit code is 0 when nothing was bad."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=500, help="so many inside a save")
    parser.add_argument("--megabytes", type=float, default=33.0, help="size of the state")
    parser.add_argument("--memory", action="store_true", help="save as into memory, without waiting for the disk")
    parser.add_argument("--directory", help="where; default: a temporary one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.megabytes, not given.memory)
    with tempfile.TemporaryDirectory(dir=given.directory) as folder:
        report = soak(Path(folder) / "backup", given.kills, given.megabytes, not given.memory, given.seed)
    print(json.dumps(report, indent=1))
    return 1 if report["bad"] or report["left behind"] else 0


if __name__ == "__main__":
    sys.exit(main())
