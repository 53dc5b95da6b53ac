"""Files of other libraries: values, orders and states as for directories of tfdist; damage and traps are refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests import foreign_writers as writers
from tests.order_battery import require_resumable
from tests.refusals import refused
from tfdist import data
from tfdist.data.format import record_framing
from tfdist.data.order.epoch_orders import Full
from tfdist.data.reading.reader import fetcher_of
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError, DataChangedError, TfdistError

pytestmark = pytest.mark.quick

ROWS = writers.rows()
HALF = len(ROWS) // 2
SAMPLES = Path(__file__).parents[1] / "goldens/foreign"


def write_tar(where: Path) -> str:
    for number, part in enumerate((ROWS[:HALF], ROWS[HALF:])):
        writers.tar(where / f"{number}.tar", [member for row in part for member in writers.tar_members(row)])
    return str(where / "*.tar")


def write_mds(where: Path) -> str:
    writers.mds(where / "mds", [ROWS[:HALF], ROWS[HALF:]])
    return str(where / "mds")


def write_lines(where: Path) -> str:
    writers.json_lines(where / "a.jsonl", ROWS)
    return str(where / "a.jsonl")


def write_arrow(where: Path) -> str:
    writers.arrow(where / "saved", ROWS)
    return str(where / "saved")


WRITERS: dict[str, Callable[[Path], str]] = {
    "tar": write_tar,
    "mds": write_mds,
    "lines": write_lines,
    "arrow": write_arrow,
}
#: what the features of a tar file are called
TAR = {"id": "id", "text": "txt", "matrix": "m.npy", "list": "l.npy"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: write(tmp_path_factory.mktemp(name)) for name, write in WRITERS.items()}


def name_in(kind: str, feature: str) -> str:
    return TAR[feature] if kind == "tar" else feature


@pytest.mark.parametrize("kind", WRITERS)
def test_values_are_those_that_were_written(sources: dict[str, str], kind: str) -> None:
    examples = data.open(sources[kind])
    assert len(examples) == len(ROWS)
    ids = np.random.default_rng(0).permutation(len(ROWS))
    columns, weight = fetcher_of(examples, verify="first", skip=False)(ids)
    assert (weight == 1).all()
    for found, number in zip(examples.each(ids.tolist()), ids.tolist(), strict=True):
        for feature, expected in ROWS[number].items():
            value = found[name_in(kind, feature)]
            if feature == "text":
                assert value == expected.encode()
            else:
                assert np.asarray(value).tolist() == np.asarray(expected).tolist()
    texts = columns[name_in(kind, "text")].tolist()
    assert texts == [ROWS[number]["text"].encode() for number in ids]
    assert examples.numbers(name_in(kind, "id")).tolist() == list(range(len(ROWS)))
    assert examples.lengths(name_in(kind, "list")).tolist() == [len(row["list"]) for row in ROWS]
    require_resumable(Full(len(examples)))
    again = data.open(sources[kind])
    assert again.manifest.digest == examples.manifest.digest


@pytest.mark.parametrize("kind", WRITERS)
def test_batches_are_read_shuffled_and_resumed(sources: dict[str, str], kind: str) -> None:
    label = name_in(kind, "id")
    how: dict[str, Any] = {"global_batch_size": 5, "seed": 3, "label": label}
    reading = data.read(sources[kind], **how)
    seen: list[int] = []
    for x, y, weight in reading:
        for row, number in enumerate(y.numpy().tolist()):
            assert x[name_in(kind, "matrix")][row].numpy().tolist() == ROWS[number]["matrix"].tolist()
            assert x[name_in(kind, "list")][row].numpy().tolist() == ROWS[number]["list"].tolist()
            seen += [number] * int(weight[row])
    assert sorted(seen) == list(range(len(ROWS)))
    assert seen != sorted(seen)
    state = json.loads(json.dumps(data.read(sources[kind], **how).state(batches=2)))
    rest = data.read(sources[kind], **{**how, "global_batch_size": 4}, state=state)
    assert [int(n) for _, y, w in rest for n, kept in zip(y, w, strict=True) if kept] == seen[10:]


def test_formats_are_mixed_with_directories(sources: dict[str, str], tmp_path: Path) -> None:
    data.write({name: [row[name] for row in ROWS] for name in ("id", "text")}, tmp_path / "own")
    parts = {
        "lines": sources["lines"],
        "mds": data.select(sources["mds"], where={"id": {1, 2}}),
        "own": tmp_path / "own",
    }
    mixture = data.mix(parts, stop="all", features=["id", "text"], weights=dict.fromkeys(parts, 1))
    for x, y, _ in data.read(mixture, global_batch_size=8, label="id"):
        assert x.numpy().tolist() == [ROWS[number]["text"].encode() for number in y.numpy()]


def test_token_files_are_packed_where_they_lie(tmp_path: Path) -> None:
    sequences = [np.arange(100 * n, 100 * n + n, dtype="uint16") for n in (3, 7, 1, 5)]
    writers.megatron(tmp_path / "corpus", [sequences[:1], sequences[1:]], code=8)
    for name in ("corpus", "corpus.bin", "corpus.idx"):
        examples = data.open(tmp_path / name)
        assert [row["tokens"].tolist() for row in examples] == [one.tolist() for one in sequences]
        assert examples.schema["tokens"].dtype == "uint16"
        assert examples.numbers("document").tolist() == [0, 1, 1, 1]
    rows = data.pack(tmp_path / "corpus", "tokens", 4, shuffle=False)
    flat = np.concatenate([row["tokens"] for row in rows])
    assert flat.tolist() == np.concatenate(sequences).tolist()
    path = tmp_path / "corpus.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with refused(CorruptDataError, path=path):
        data.open(tmp_path / "corpus")
    (tmp_path / "corpus.idx").write_bytes(b"MMIDIDX\x00\x00" + b"\x02" * 40)
    with refused(CorruptDataError, path=tmp_path / "corpus.idx"):
        data.open(tmp_path / "corpus")


def test_records_of_any_bytes_are_read_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "frames"
    path.write_bytes(b"".join(record_framing.frame(b"z" * n) for n in range(9)))
    examples = data.open(path, records="raw")
    assert [row["record"] for row in examples] == [b"z" * n for n in range(9)]
    seen = sorted(len(record) for batch in data.read(examples, global_batch_size=4) for record in batch.numpy())
    assert seen == list(range(9))
    content = bytearray(path.read_bytes())
    content[-6] ^= 1
    path.write_bytes(content)
    with refused(DataChangedError):
        list(data.read(examples, global_batch_size=4))
    with refused(CorruptDataError, mentions=("example 8",)):
        list(data.read(data.open(path, records="raw"), global_batch_size=4))
    path.write_bytes(content[:-3])
    with refused(CorruptDataError):
        data.open(path, records="raw")
    with refused(ConfigError, name="directory"):
        data.open(tmp_path / "nothing*", records="raw")
    with refused(ConfigError, name="records"):
        data.open(path, records="any")


def test_files_that_only_have_the_names_are_left_alone(tmp_path: Path) -> None:
    data.write({"id": np.arange(5)}, tmp_path / "own")
    next((tmp_path / "own").glob("*.tfrecord")).rename(tmp_path / "train.tfrecord")
    (tmp_path / "state.json").write_text('{"epoch": 3}')
    (tmp_path / "index.json").write_text("[]")
    assert [int(row["id"]) for row in data.open(tmp_path)] == list(range(5))


def lines(*rows: str) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        (where / "a.jsonl").write_text("\n".join(rows))
        return where / "a.jsonl"

    return write


def members(*given: tuple[str, bytes]) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        writers.tar(where / "a.tar", given)
        return where / "a.tar"

    return write


def index_of(**changes: Any) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        writers.mds(where / "mds", [ROWS])
        index = json.loads((where / "mds/index.json").read_text())
        index["shards"][0].update(changes)
        (where / "mds/index.json").write_text(json.dumps(index))
        return where / "mds"

    return write


def cut(name: str, write: Callable[[Path], Any]) -> Callable[[Path], Path]:
    def writing(where: Path) -> Path:
        write(where)
        path = where / name
        os.truncate(path, path.stat().st_size * 2 // 3)
        return path if path.suffix != ".mds" else path.parent

    return writing


def no_tar(where: Path) -> Path:
    (where / "a.tar").write_bytes(b"x" * 600)
    return where / "a.tar"


def endless_stream(where: Path) -> Path:
    """Return a stream that lost its last batch and its mark: Arrow itself reads one batch."""
    path, batch = where / "a.arrow", pa.record_batch({"x": [1, 2, 3]})
    with open(path, "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
        end = file.tell()
        stream.write_batch(batch)
    assert len(data.open(path)) == 6
    os.truncate(path, end)
    with open(path, "rb") as file:
        assert pa.ipc.open_stream(file).read_all().num_rows == 3
    return path


REFUSED: dict[str, tuple[Callable[[Path], Path], type[TfdistError]]] = {
    "keys that end at the first dot": (
        members(("a/b.c.jpg", b"1"), ("a/b.d.cls", b"1"), ("a/e.jpg", b"2")),
        ConfigError,
    ),
    "a key that comes again": (members(("a.cls", b"1"), ("b.cls", b"1"), ("a.cls", b"2")), ConfigError),
    "a member that is missing": (members(("a.cls", b"1"), ("a.txt", b"1"), ("b.cls", b"2")), ConfigError),
    "a tar without examples": (members(("README", b"1")), ConfigError),
    "a tar that is cut": (cut("0.tar", write_tar), CorruptDataError),
    "no tar": (no_tar, CorruptDataError),
    "lines that are no JSON": (lines('{"a": 1}', "{"), CorruptDataError),
    "lines that are no objects": (lines('{"a": 1}', "[1]"), CorruptDataError),
    "objects in objects": (lines('{"a": {"b": 1}}'), ConfigError),
    "no line": (lines(""), ConfigError),
    "pickles": (index_of(column_encodings=["int", "pkl", "bytes", "str"]), ConfigError),
    "compressed shards": (index_of(compression="zstd", raw_data={"basename": "x.mds"}), ConfigError),
    "a shard that is missing": (index_of(raw_data={"basename": "x.mds"}), CorruptDataError),
    "a shard of another folder": (index_of(raw_data={"basename": "../x.mds"}), CorruptDataError),
    "another number of samples": (index_of(samples=5), CorruptDataError),
    "a shard that is cut": (cut("mds/shard.00000.mds", index_of()), CorruptDataError),
    "a file of Arrow that is cut": (cut("saved/data-1.arrow", write_arrow), CorruptDataError),
    "a stream of Arrow without its end": (endless_stream, CorruptDataError),
}


@pytest.mark.parametrize(("write", "kind"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_read_rightly_is_refused(
    tmp_path: Path, write: Callable[[Path], Path], kind: type[TfdistError]
) -> None:
    source = write(tmp_path)
    with refused(kind):
        data.open(source)


def test_a_bad_example_is_named_or_skipped(tmp_path: Path) -> None:
    broken = [("a.cls", b"1"), ("b.cls", b"5.0"), ("c.cls", b"3")]
    writers.tar(tmp_path / "a.tar", broken)
    with refused(CorruptDataError, mentions=("example 1", "a.tar")):
        list(data.read(tmp_path / "a.tar", global_batch_size=3, label="cls"))
    ((_, y, weight),) = data.read(tmp_path / "a.tar", global_batch_size=3, label="cls", on_corrupt="skip")
    assert sorted(y.numpy()[weight.numpy() > 0].tolist()) == [1, 3]
    rows = [json.dumps({"n": i if i != 300 else "x"}) for i in range(600)]
    (tmp_path / "a.jsonl").write_text("\n".join(rows))
    with refused(CorruptDataError, mentions=("example 300",)):
        list(data.read(tmp_path / "a.jsonl", global_batch_size=64))
    with refused(ConfigError, name="storage_options"):
        data.read(data.open(tmp_path / "a.tar"), global_batch_size=3, storage_options={"anon": True})
    with refused(ConfigTypeError, name="directory"):
        data.read({"a": 1}, global_batch_size=3)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "renamed"), [("web.tar", {"text": "txt", "matrix": "npy"}), ("mds", {}), ("saved", {})]
)
def test_what_the_libraries_themselves_wrote_is_read(name: str, renamed: dict[str, str]) -> None:
    """`make.py` in the folder wrote them: WebDataset, MosaicML's streaming, and Hugging Face's datasets."""
    examples = data.open(SAMPLES / name)
    assert len(examples) == 7
    for number, found in enumerate(examples):
        expected = {
            "id": number,
            "score": number / 4,
            "text": ("größe" * (number % 3)).encode(),
            "matrix": np.full((2, 3), number).tolist(),
            "list": list(range(number % 5 + 1)),
        }
        for feature, value in expected.items():
            if feature in ("id", "text", "matrix") or name != "web.tar":
                there = found[renamed.get(feature, feature)]
                assert (there if isinstance(there, bytes) else np.asarray(there).tolist()) == value
    columns, _ = fetcher_of(examples, verify="first", skip=False)(np.arange(7)[::-1])
    assert columns["id"].tolist() == list(range(7))[::-1]
