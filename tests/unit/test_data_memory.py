"""Memory of batches is kept: the system is asked for pages once, not for every batch."""

import os
import subprocess
import sys

ROUNDS = """
import resource
from tfdist.data import memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        batch = [b"." * (60_000 + place) for place in range(64)]
        del batch
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20

first = faults()
memory.keep()
faults()
print(first, faults())
"""


def test_memory_is_kept() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS], env=environ, capture_output=True, text=True, timeout=60, check=True
    )
    first, kept = map(int, done.stdout.split())
    assert first > 500
    assert kept < 50
