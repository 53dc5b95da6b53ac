"""The memory that a reader keeps: that of batches, allocated once, and maps of files, none of which stays open."""

import os
import subprocess
import sys
from pathlib import Path

ROUNDS = """
import resource
from tfdist.data.examples.fetch import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        batch = [b"." * (60_000 + place) for place in range(64)]
        del batch
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 20

first = faults()
keep_freed_memory()
faults()
print(first, faults())
"""


def test_memory_is_kept() -> None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS], env=environ, capture_output=True, text=True, timeout=200, check=True
    )
    first, kept = map(int, done.stdout.split())
    assert first > 500
    assert kept < 50


MANY_SHARDS = """
import resource, sys, numpy as np
from tfdist import data
from tfdist.data.examples.fetch import Fetcher, source_of
data.write({"x": np.arange(240.0), "label": np.arange(240)}, sys.argv[1], num_shards=120, processes=1)
resource.setrlimit(resource.RLIMIT_NOFILE, (80, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
examples = data.open(sys.argv[1])
columns, weight = Fetcher(examples, source_of(examples), verify="always", skip=False)(np.arange(240)[::-1])
assert columns["label"].tolist() == [example["label"] for example in examples][::-1]
assert weight.all()
"""


def test_more_shards_than_files_that_may_be_open(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MANY_SHARDS, str(tmp_path)], timeout=200, check=True)
