"""The memory that a reader keeps: that of batches, allocated once, and maps of files, none of which stays open."""

import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tfdist import data

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


def test_an_index_takes_few_bytes_of_each_example(tmp_path: Path) -> None:
    count = 12_000
    texts = ["x" * (number % 200) for number in range(count)]
    labels = [number % 7 - 3 for number in range(count)]
    data.write({"text": texts, "label": np.array(labels)}, tmp_path, num_shards=3, processes=1)
    examples = data.open(tmp_path)
    examples.column("offset")  # what is made once is there
    tracemalloc.start()
    try:
        examples = data.open(tmp_path)
        assert examples.locate(np.array([count - 1]))[0].tolist() == [2]
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert examples.numbers("label").tolist() == labels
    assert examples.numbers("label").dtype == np.int64
    assert examples.lengths("text").tolist() == list(map(len, texts))
    assert [len(row["text"]) for row in examples.each([0, 199, count - 1])] == [0, 199, (count - 1) % 200]
    assert taken < 10 * count  # 4 for the place, 1 for its text, 1 for the length and 1 for the label


def test_an_index_is_read_without_copies(tmp_path: Path) -> None:
    count = 50_000
    data.write({"text": [b"x"] * count, "label": np.zeros(count, int)}, tmp_path, num_shards=1, processes=1)
    data.open(tmp_path).column("offset")  # what is made once is there
    examples = data.open(tmp_path)
    tracemalloc.start()
    try:
        examples.column("offset")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 42 * count  # 24 for the file, 7 for the index; a copy of the file would be 24 more


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint32", "int64", "uint64"])
def test_integers_of_an_index_are_exact(tmp_path: Path, dtype: str) -> None:
    info = np.iinfo(dtype)
    few = [0, 1, 127, 128, 255]
    for number, values in enumerate(([info.min, info.max], [info.max], [value for value in few if value <= info.max])):
        folder = tmp_path / str(number)
        written = np.array(values, dtype)
        data.write({"text": ["a"] * len(values), "label": written}, folder, num_shards=len(values), processes=1)
        found = data.open(folder).numbers("label")
        assert (found.dtype, found.tolist()) == (written.dtype, values)


def test_more_shards_than_files_that_may_be_open(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", MANY_SHARDS, str(tmp_path)], timeout=200, check=True)
