"""The training of resumable.py, of which the first worker kills its whole host twice, before the steps named.

python losing_hosts.py RESULT BACKUP DATA SAVE_FREQ

It does so once the host of worker 1 has a copy of the state before the last step. With the second death nobody reaches
the host any more: a file says so to what stands for ssh.
"""

import glob
import os
import pathlib
import signal
import sys
import time

import resumable

SHARED = pathlib.Path(os.environ["SHARED"])
START, WORKER = int(os.environ.get("TFDIST_RESTARTS", "0")), os.environ.get("TFDIST_WORKER_INDEX")
STEPS = (3, 4)  # of which start; the second is the first step of an epoch
SECONDS = 300.0


def wait_for_copy(step):
    """Wait until there is a copy of a state after so many steps at least."""
    where = (SHARED / f"copies {START}").read_text()
    deadline = time.monotonic() + SECONDS
    while not any(int(name.rpartition("-")[2]) >= step for name in glob.glob(f"{where}/*/state/step-*")):
        if time.monotonic() > deadline:
            sys.exit("no copy has come")
        time.sleep(0.005)


class Losing(resumable.Spy):
    def on_train_batch_begin(self, batch, logs=None):
        super().on_train_batch_begin(batch, logs)
        if WORKER != "0" or len(STEPS) <= START or len(self.seen) != STEPS[START] + 1:
            return
        wait_for_copy(STEPS[START] - 1)
        if START == 1:
            (SHARED / "one is gone").touch()
        os.kill(os.getppid(), signal.SIGKILL)  # what acts for the agent here; its guardian ends all the rest
        time.sleep(SECONDS)


if __name__ == "__main__":
    if WORKER == "1" and "TFDIST_COPIES_DIR" in os.environ:
        (SHARED / f".copies {START}").write_text(os.environ["TFDIST_COPIES_DIR"])
        (SHARED / f".copies {START}").rename(SHARED / f"copies {START}")
    resumable.Spy = Losing
    resumable.main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
