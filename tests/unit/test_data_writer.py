"""Writing: the same bytes however it is done and however often it is interrupted; what is there is never lost."""

import hashlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist import data
from tfdist.data.format.data_manifest import Shard
from tfdist.data.writing.journal import Journal
from tfdist.data.writing.shard import cuts
from tfdist.errors import ConfigError, ConfigTypeError, StorageError
from tfdist.storage.directory import storage

DEADLINE_SECONDS = 200
FIXED = {"x": np.arange(202, dtype="float32").reshape(101, 2), "label": np.arange(101)}
TEXTS = {"text": [f"{place}".encode() * (place % 13) for place in range(101)], "label": np.arange(101)}
LISTS = data.Schema({"list": data.Feature("int64", (None,)), "label": data.Feature("int64")})


def lists(count: int = 101) -> Iterator[dict[str, Any]]:
    for place in range(count):
        yield {"list": np.arange(place % 5) - 2, "label": place}


def rows(arrays: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for place in range(101):
        yield {name: values[place] for name, values in arrays.items()}


def content(folder: Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*"))
        if not path.name.startswith(".")
    }


WAYS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "fixed": (lambda: FIXED, {"num_shards": 4}),
    "texts": (lambda: TEXTS, {"num_shards": 4}),
    "stream": (lambda: rows(TEXTS), {"shard_bytes": 2000}),
    "lists": (lists, {"shard_bytes": 900, "schema": LISTS}),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_written_is_what_is_read(way: str, tmp_path: Path) -> None:
    examples, options = WAYS[way]
    manifest = data.write(examples(), tmp_path / "größe 1", **options)
    found = data.open(tmp_path / "größe 1")
    assert len(found) == manifest.examples == 101
    assert len(manifest.shards) > 2
    assert manifest.label == "label"
    for place in (0, 1, 50, 100, -1):
        example = found[place]
        assert example["label"] == place % 101
        if way == "fixed":
            assert example["x"].tolist() == FIXED["x"][place].tolist()
        elif way == "lists":
            assert example["list"].tolist() == (np.arange(place % 101 % 5) - 2).tolist()
        else:
            assert example["text"] == TEXTS["text"][place]
    assert [example["label"] for example in found[3:9:2]] == [3, 5, 7]
    assert content(tmp_path / "größe 1").keys() == {
        "manifest.json",
        *(shard.file for shard in manifest.shards),
        *(shard.index.file for shard in manifest.shards if shard.index),
    }


@pytest.mark.parametrize("way", WAYS)
def test_a_second_run_gives_the_same_bytes(way: str, tmp_path: Path) -> None:
    examples, options = WAYS[way]
    for name in ("a", "b"):
        data.write(examples(), tmp_path / name, **options)
    assert content(tmp_path / "a") == content(tmp_path / "b")


IN_PROCESSES = """
import sys, numpy as np
from tfdist import data
texts = [b"x" * (place % 13) for place in range(101)]
import pyarrow
table = pyarrow.table({"x": np.arange(101.0), "text": texts})
for processes in (1, 2):  # no guard of __main__: it is not run again
    data.write(table, f"table{processes}", num_shards=5, processes=processes)
    data.write({"x": np.arange(101.0)}, f"fixed{processes}", num_shards=5, processes=processes)
    data.write({"text": texts}, f"texts{processes}", num_shards=5, processes=processes)
"""


def test_processes_give_the_same_bytes_in_a_relative_folder(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", IN_PROCESSES], cwd=tmp_path, timeout=DEADLINE_SECONDS, check=True)
    for kind in ("fixed", "texts", "table"):
        assert len(data.open(tmp_path / f"{kind}1")) == 101
        assert content(tmp_path / f"{kind}1") == content(tmp_path / f"{kind}2")


@pytest.mark.parametrize("kind", ["a stream", "a source without sizes"])
def test_processes_that_do_not_help_are_told(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = StoppingSource(TEXTS, at=-1)
    source.sizes = None
    examples = rows(TEXTS) if kind == "a stream" else source
    why = "from its beginning" if kind == "a stream" else "Pass num_shards"
    data.write(examples, tmp_path, shard_bytes=2000, processes=2)
    assert "processes is 2" in caplog.text
    assert why in caplog.text


class StopsError(Exception):
    """The error that the examples of a test raise."""


def stopping(examples: Iterator[dict[str, Any]], at: int) -> Iterator[dict[str, Any]]:
    for place, example in enumerate(examples):
        if place == at:
            raise StopsError
        yield example


class StoppingSource:
    """Arrays that cannot be read at one example, as often as told."""

    def __init__(self, arrays: dict[str, Any], at: int) -> None:
        from tfdist.data.sources import open_source

        self._source = open_source(arrays)
        self._at = at
        self.schema, self.count, self.sizes = self._source.schema, self._source.count, self._source.sizes
        self.seekable, self.identity, self.identifies = True, self._source.identity, self._source.identifies
        self.read: list[int] = []

    def blocks(self, start: int, stop: int | None) -> Iterator[Any]:
        self.read.append(start)
        if stop is not None and start <= self._at < stop:
            raise StopsError
        yield from self._source.blocks(start, stop)


@pytest.mark.parametrize("at", [0, 1, 1023, 1500, 2048, 3999])
def test_an_interrupted_stream_goes_on_behind_its_shards(at: int, tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    data.write(lists(4000), whole, shard_bytes=20_000, schema=LISTS)
    with pytest.raises(StopsError):
        data.write(stopping(lists(4000), at), broken, shard_bytes=20_000, schema=LISTS)
    left = content(broken)
    assert "manifest.json" not in left
    assert (len(left) > 3) == (at > 1023)
    data.write(lists(4000), broken, shard_bytes=20_000, schema=LISTS)
    assert content(broken) == content(whole)
    assert all(content(broken)[name] == digest for name, digest in left.items() if name.startswith("data-"))


def test_an_interrupted_run_writes_only_what_is_missing(tmp_path: Path) -> None:
    data.write(FIXED, tmp_path / "whole", num_shards=4)
    with pytest.raises(StopsError):
        data.write(StoppingSource(FIXED, at=60), tmp_path / "broken", num_shards=4)
    again = StoppingSource(FIXED, at=-1)
    data.write(again, tmp_path / "broken", num_shards=4)
    assert again.read == [50, 76], "the first two shards were finished"
    assert content(tmp_path / "broken") == content(tmp_path / "whole")


def test_another_job_does_not_take_over_the_shards_of_an_interrupted_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(StopsError):
        data.write(StoppingSource(FIXED, at=60), tmp_path / "a", num_shards=4)
    other = {**FIXED, "label": FIXED["label"] + 1}
    data.write(other, tmp_path / "a", num_shards=3)
    assert "discards 2 finished shards" in caplog.text
    data.write(other, tmp_path / "b", num_shards=3)
    assert content(tmp_path / "a") == content(tmp_path / "b")


def test_a_journal_of_many_shards_is_seldom_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, appended = storage(tmp_path), list[bytes]()
    monkeypatch.setattr(place, "append", lambda name, lines: appended.append(lines))
    journal = Journal(place, {})
    journal.begin(1)
    for number in range(2000):
        journal.add(number, Shard(file=f"{number}", examples=1, bytes=1, crc32c=0, smallest=1, largest=1))
    assert b"".join(appended).count(b"crc32c") >= 0.99 * 2000
    assert len(appended) < 500


LONG = {"text": [b"x" * 5000 + b"%03d" % place for place in range(101)], "label": np.arange(101)}
MAKE: dict[str, tuple[Callable[[dict[str, Any]], Any], dict[str, Any]]] = {
    "stream": (rows, {"shard_bytes": 100_000}),
    "list": (lambda arrays: list(rows(arrays)), {"num_shards": 5}),
    "arrays": (lambda arrays: arrays, {"num_shards": 5}),  # of long texts a digest sees the beginnings
}


def stop_in_the_third_shard(examples: int, total: int | None, size: int) -> None:
    if size > 250_000:
        raise StopsError


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("at", [0, 30])
def test_shards_of_other_examples_are_not_mixed(
    kind: str, at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, options = MAKE[kind]
    texts = [text if place != at else text[:-3] + b"new" for place, text in enumerate(LONG["text"])]
    changed = {**LONG, "text": texts}
    data.write(make(LONG), tmp_path / "whole", **options)
    data.write(make(changed), tmp_path / "changed", **options)
    for name in ("goes on", "begins anew"):
        with pytest.raises(StopsError):
            data.write(make(LONG), tmp_path / name, progress=stop_in_the_third_shard, **options)
    left = content(tmp_path / "goes on")
    assert len(left) == 5, "two shards, their indices and the journal"
    with refused(ConfigError, name=f"data-0000{at // 20}.tfrecord", mentions=["exists='overwrite'"]):
        data.write(make(changed), tmp_path / "goes on", **options)
    assert content(tmp_path / "goes on") == left
    data.write(make(LONG), tmp_path / "goes on", **options)
    assert "after 2 finished shards" in caplog.text
    assert content(tmp_path / "goes on") == content(tmp_path / "whole")
    data.write(make(changed), tmp_path / "begins anew", exists="overwrite", **options)
    assert content(tmp_path / "begins anew") == content(tmp_path / "changed")


def test_a_stream_that_is_shorter_the_second_time_is_told(tmp_path: Path) -> None:
    with pytest.raises(StopsError):
        data.write(stopping(lists(3000), 2500), tmp_path, shard_bytes=20_000, schema=LISTS)
    with refused(ConfigError, path=tmp_path, mentions=["exists='overwrite'"]):
        data.write(lists(20), tmp_path, shard_bytes=20_000, schema=LISTS)


KILLED = """
import os, signal, sys
from tfdist import data
def examples():
    for place in range(2000):
        if place == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield {"text": b"x" * (place % 50), "label": place}
data.write(examples(), sys.argv[1], shard_bytes=8000)
"""


@pytest.mark.parametrize("at", [1, 1100, 1999])
def test_a_killed_run_leaves_whole_shards_and_is_finished_by_the_next(at: int, tmp_path: Path) -> None:
    for name, place in (("whole", -1), ("killed", at), ("killed", -1)):
        command = [sys.executable, "-c", KILLED, str(tmp_path / name), str(place)]
        code = subprocess.run(command, timeout=DEADLINE_SECONDS, check=False).returncode
        assert code == (0 if place < 0 else -signal.SIGKILL)
        if place >= 0:
            assert not (tmp_path / name / "manifest.json").exists()
    assert content(tmp_path / "killed") == content(tmp_path / "whole")
    assert not [path.name for path in (tmp_path / "killed").iterdir() if path.name.endswith(".tmp")]


FULL = """
import resource, signal, sys
from tfdist import data
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
try:
    data.write(({"text": b"x" * (100 if place < 500 else 1000)} for place in range(600)), sys.argv[1], num_shards=None,
               shard_bytes=20_000 if sys.argv[2] == "fits" else 40_000)
except data.writer.TfdistError as error:
    print(type(error).__name__, error)
    sys.exit(3)
"""


def test_a_file_that_cannot_grow_is_told_and_leaves_nothing_behind(tmp_path: Path) -> None:
    script = FULL.replace("data.writer.TfdistError", "Exception")
    command = [sys.executable, "-B", "-c", script, str(tmp_path / "a")]  # the limit would cut modules that it compiles
    done = subprocess.run([*command, "fails"], timeout=DEADLINE_SECONDS, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert "StorageError" in done.stdout
    assert "data-00000.tfrecord" in done.stdout
    assert content(tmp_path / "a").keys() <= {"writing.jsonl"}
    with refused(ConfigError, name="manifest.json"):
        data.open(tmp_path / "a")  # the journal is no data
    (tmp_path / "writing.jsonl").write_text('{"x": 1}\n')
    assert data.open(tmp_path)[0] == {"x": 1}, "another file may have its name"
    done = subprocess.run([*command, "fits"], timeout=DEADLINE_SECONDS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(data.open(tmp_path / "a")) == 600


def test_two_that_write_at_once_write_once(tmp_path: Path) -> None:
    script = (
        "import sys, numpy as np\nfrom tfdist import data\n"
        "m = data.write({'x': np.arange(3000.0) + int(sys.argv[2])}, sys.argv[1], num_shards=9, exists='keep')\n"
        "print(m.digest)"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", script, str(tmp_path), str(who)], stdout=subprocess.PIPE, text=True)
        for who in range(3)
    ]
    digests = {process.communicate(timeout=DEADLINE_SECONDS)[0] for process in processes}
    assert len(digests) == 1
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len(data.open(tmp_path)) == 3000


def test_a_directory_that_holds_examples_is_not_written_by_chance(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data.write(FIXED, tmp_path, num_shards=3)
    before = content(tmp_path)
    with refused(ConfigError, name="exists", path=tmp_path, mentions=["exists='overwrite'"]):
        data.write(TEXTS, tmp_path)
    assert data.write(FIXED, tmp_path, exists="keep").layout == "fixed"
    assert not caplog.records
    for other in (TEXTS, {name: np.asarray(values)[1:] for name, values in FIXED.items()}):  # names, number
        assert data.write(other, tmp_path, exists="keep").layout == "fixed"
        assert "exists='overwrite'" in caplog.text
        caplog.clear()
    assert content(tmp_path) == before
    data.write(TEXTS, tmp_path, num_shards=2, exists="overwrite")
    assert data.open(tmp_path)[7]["text"] == TEXTS["text"][7]
    assert "data-00002.tfrecord" not in content(tmp_path)


def test_files_of_somebody_else_are_not_removed(tmp_path: Path) -> None:
    (tmp_path / "data-00000.tfrecord").write_bytes(b"mine")
    with refused(ConfigError, name="data-00000.tfrecord", path=tmp_path, mentions=["manifest.json"]):
        data.write(FIXED, tmp_path)
    assert (tmp_path / "data-00000.tfrecord").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir()] == ["data-00000.tfrecord"]


@pytest.mark.parametrize(
    ("examples", "options", "kind", "name", "fact"),
    [
        (FIXED, {"num_shards": 102}, ConfigError, "num_shards", "101 examples"),
        (FIXED, {"num_shards": 0}, ConfigError, "num_shards", "1 to 1000000"),
        (FIXED, {"num_shards": True}, ConfigTypeError, "num_shards", "integer"),
        (FIXED, {"shard_bytes": 0}, ConfigError, "shard_bytes", "1"),
        (FIXED, {"num_shards": 2, "shard_bytes": 5}, ConfigError, "num_shards", "shard_bytes"),
        (FIXED, {"label": "y"}, ConfigError, "label", "'label', 'x'"),
        (FIXED, {"exists": "maybe"}, ConfigError, "exists", "'overwrite'"),
        (FIXED, {"processes": 0}, ConfigError, "processes", "1"),
        ([], {}, ConfigError, "examples", "empty"),
        (iter([]), {}, ConfigError, "examples", "ended"),
        (lists(), {"num_shards": 3, "schema": LISTS}, ConfigError, "num_shards", "shard_bytes"),
        ([{"a": 1}, {"b": 2}], {}, ConfigError, "a, b", "Example 1"),
        ([{"a": 1}, {"a": "x"}], {}, ConfigError, "a", "Example 1"),
        ([{"a": 1}, {"a": [1, 2]}], {}, ConfigError, "a", "Example 1"),
        ([{"a": object()}], {}, ConfigError, "a", "dtype object"),
        (5, {}, ConfigTypeError, "examples", "5 (int)"),
    ],
)
def test_what_cannot_be_written_is_told(
    examples: Any, options: dict[str, Any], kind: type[ConfigError], name: str, fact: str, tmp_path: Path
) -> None:
    with refused(kind, name=name, mentions=[fact]):
        data.write(examples, tmp_path / "out", **options)
    if fact == "Example 1":  # seen while writing
        assert not (tmp_path / "out" / "manifest.json").exists()
    else:
        assert not (tmp_path / "out").exists()


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with refused(StorageError, path=tmp_path / "file" / "below"):
        data.write(FIXED, tmp_path / "file" / "below")


def test_progress_goes_up_to_the_end(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None, int]] = []
    manifest = data.write(FIXED, tmp_path, num_shards=5, progress=lambda *now: seen.append(now))
    assert [done for done, _, _ in seen] == sorted(done for done, _, _ in seen)
    assert seen[-1] == (101, 101, manifest.total_bytes)


@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=200),
    shards=st.integers(1, 20),
)
@settings(max_examples=200, deadline=None)
def test_cuts_are_contiguous_and_as_equal_as_examples_allow(sizes: list[int], shards: int) -> None:
    shards = min(shards, len(sizes))
    found = cuts(len(sizes), sizes=np.array(sizes), example_bytes=1, num_shards=shards, shard_bytes=1)
    assert len(found) == shards
    assert [start for start, _ in found] == [0, *(stop for _, stop in found[:-1])]
    assert found[-1][1] == len(sizes)
    assert all(stop > start for start, stop in found)
    if max(sizes) * shards * 2 < sum(sizes):
        totals = [sum(sizes[start:stop]) for start, stop in found]
        assert max(totals) <= sum(sizes) / shards + max(sizes)


def test_shards_of_very_many_bytes_are_equal() -> None:
    found = cuts(8, sizes=np.full(8, 2**59), example_bytes=1, num_shards=4, shard_bytes=1)
    assert found == [(0, 2), (2, 4), (4, 6), (6, 8)]


def test_shards_of_many_examples_are_balanced_to_two_percent() -> None:
    sizes = np.random.default_rng(1).integers(20_000, 100_000, 20_000)
    found = cuts(20_000, sizes=sizes, example_bytes=1, num_shards=16, shard_bytes=1)
    totals = [sizes[start:stop].sum() for start, stop in found]
    assert max(totals) <= 1.02 * np.mean(totals)
