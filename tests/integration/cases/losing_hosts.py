"""The training of resumable.py, of which the first worker's whole host dies twice, before the steps named.

python losing_hosts.py RESULT BACKUP DATA SAVE_FREQ

It does so once the host of worker 1 has a copy of the state before the last step, and the launcher has written to the
file EVENTS, if that is in the environment, that all workers step: a host that dies tells nothing more. The first time
the worker kills what acts for the agent on its host, whose guardian ends all the rest. Before the second death a file
says that the host is gone, so that what stands for ssh reaches it no more; with MACHINES in the environment whoever
sees that file ends it.
"""

import glob
import json
import os
import pathlib
import signal
import sys
import threading
import time

import resumable

SHARED = pathlib.Path(os.environ["SHARED"])
START, WORKER = int(os.environ.get("TFDIST_RESTARTS", "0")), os.environ.get("TFDIST_WORKER_INDEX")
COPIES = os.environ.get("TFDIST_COPIES_DIR")
STEPS = (3, 5)  # of which start; the second is the second step of an epoch
SECONDS = 300.0


def tell_of_copies():
    """Say which state the newest copy on this host is of, in a file that all hosts see."""
    while True:
        numbers = [int(path.rpartition("-")[2]) for path in glob.glob(f"{COPIES}/*/state/step-*")]
        (SHARED / ".copied").write_text(str(max(numbers, default=0)))
        (SHARED / ".copied").rename(SHARED / f"copied {START}")
        time.sleep(0.005)


def wait_until(is_so, otherwise):
    """Wait until a function returns true, or end with a text."""
    deadline = time.monotonic() + SECONDS
    while not is_so():
        if time.monotonic() > deadline:
            sys.exit(otherwise)
        time.sleep(0.005)


def is_copied(step):
    """Return whether there is a copy of a state after at least so many steps."""
    told = SHARED / f"copied {START}"
    return told.exists() and int(told.read_text()) >= step


def is_recorded(file):
    """Return whether the launcher has recorded that this start's workers train."""
    events = [json.loads(line) for line in pathlib.Path(file).read_text().splitlines(keepends=True) if "\n" in line]
    return any(one["event"] == "stepping" and one["start"] == START for one in events)


class Losing(resumable.Spy):
    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        steps = sum(not isinstance(one, str) for one in self.seen)
        if WORKER != "0" or len(STEPS) <= START or steps != STEPS[START]:
            return
        wait_until(lambda: is_copied(STEPS[START] - 1), "no copy has come")
        if "EVENTS" in os.environ:
            wait_until(lambda: is_recorded(os.environ["EVENTS"]), "the launcher does not see that the workers step")
        if START == 1:
            (SHARED / "one is gone").touch()
        if START == 0 or "MACHINES" not in os.environ:
            os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(SECONDS)


if __name__ == "__main__":
    if WORKER == "1" and COPIES:
        threading.Thread(target=tell_of_copies, daemon=True).start()
    resumable.Spy = Losing
    resumable.main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
