"""The pool of processes: nothing of it stays, and it says nothing, however slowly its threads come to their end."""

import subprocess
import sys

SCRIPT = """
import sys, time
import psutil
from loky.backend import queues
from tfdist.data import process_pool

feed = queues.Queue._feed

def slow(*args):
    feed(*args)
    time.sleep(0.3)  # the arguments, semaphores among them, are still held

queues.Queue._feed = staticmethod(slow)
assert list(process_pool.in_processes(divmod, [(7, 2)], 1)) == [(3, 1)]
assert not [child for child in psutil.Process().children() if "loky" in " ".join(child.cmdline())]
print(sys.modules.keys() & {"tensorflow", "keras"})
"""


def test_the_tracker_ends_behind_the_threads_that_hold_what_it_tracks() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=200)
    assert (done.stdout, done.stderr) == ("set()\n", "")
