"""Files of other libraries: values, orders and states as for directories of tfdist; damage and traps are refused."""

import gzip
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from array_record.python.array_record_module import ArrayRecordWriter

from tests import foreign_writers as writers
from tests.goldens.foreign.make import entries
from tests.order_battery import require_resumable
from tests.refusals import refused
from tfdist import data
from tfdist.data.examples.fetch import PAYLOAD
from tfdist.data.foreign.arrow_files import ArrowFiles
from tfdist.data.foreign.foreign_files import Files
from tfdist.data.format import record_framing
from tfdist.data.order.epoch_orders import Full
from tfdist.data.reading.view import fetcher_of
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


def write_lit(where: Path) -> str:
    writers.litdata(where / "lit", [ROWS[:HALF], ROWS[HALF:]])
    return str(where / "lit")


def write_array_records(where: Path) -> str:
    for number, (part, options) in enumerate(((ROWS[:HALF], ""), (ROWS[HALF:], "group_size:4"))):
        writers.array_records(where / f"a.array_record-{number:05d}-of-00002", part, options)
    return str(where)


def write_sequences(where: Path) -> str:
    for number, part in enumerate((ROWS[:HALF], ROWS[HALF:])):
        writers.sequences(where / f"{number}.tfrecord", part)
    return str(where)


WRITERS: dict[str, Callable[[Path], str]] = {
    "tar": write_tar,
    "mds": write_mds,
    "lines": write_lines,
    "arrow": write_arrow,
    "lit": write_lit,
    "array_record": write_array_records,
    "sequences": write_sequences,
}
OPTIONS: dict[str, dict[str, Any]] = {"sequences": {"records": "sequences"}}
#: what the features of a tar file are called
TAR = {"id": "id", "text": "txt", "matrix": "m.npy", "list": "l.npy"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {name: write(tmp_path_factory.mktemp(name)) for name, write in WRITERS.items()}


def name_in(kind: str, feature: str) -> str:
    return TAR[feature] if kind == "tar" else feature


def flat(value: Any) -> list[Any]:
    """Return the numbers of an array; records have no shapes."""
    return np.asarray(value).ravel().tolist()


@pytest.mark.parametrize("kind", WRITERS)
def test_values_are_those_that_were_written(sources: dict[str, str], kind: str) -> None:
    examples = data.open(sources[kind], **OPTIONS.get(kind, {}))
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
                assert flat(value) == flat(expected)
    if PAYLOAD not in columns:
        texts = columns[name_in(kind, "text")].tolist()
        assert texts == [ROWS[number]["text"].encode() for number in ids]
    assert examples.numbers(name_in(kind, "id")).tolist() == list(range(len(ROWS)))
    assert examples.lengths(name_in(kind, "list")).tolist() == [len(row["list"]) for row in ROWS]
    require_resumable(Full(len(examples)))
    again = data.open(sources[kind], **OPTIONS.get(kind, {}))
    assert again.manifest.digest == examples.manifest.digest


@pytest.mark.parametrize("kind", ["tar", "lines", "array_record"])  # arrays, lists of numbers, and whole records
def test_batches_are_read_shuffled_and_resumed(sources: dict[str, str], kind: str) -> None:
    label = name_in(kind, "id")
    how: dict[str, Any] = {"global_batch_size": 5, "seed": 3, "label": label, **OPTIONS.get(kind, {})}
    reading = data.read(sources[kind], **how)
    seen: list[int] = []
    for x, y, weight in reading:
        for row, number in enumerate(y.numpy().tolist()):
            for feature in ("matrix", "list"):
                assert flat(x[name_in(kind, feature)][row].numpy()) == flat(ROWS[number][feature])
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


def test_texts_of_more_bytes_than_arrow_counts_in_32_bits_are_read_where_they_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    batch = pa.record_batch({"text": ["a" * (1 << 20), "b" * (1 << 20)] * 8, "id": range(16)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)
    examples = ArrowFiles(Files([path] * 128, "arrow"))
    rows = list(examples.each([2047, 5, 1024, 5, 2046]))
    assert [(row["text"][:1], int(row["id"])) for row in rows] == [
        (b"b", 15),
        (b"b", 5),
        (b"a", 0),
        (b"b", 5),
        (b"a", 14),
    ]


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


def cut(name: str, write: Callable[[Path], Any], size: int | None = None) -> Callable[[Path], Path]:
    def writing(where: Path) -> Path:
        write(where)
        path = where / name
        os.truncate(path, path.stat().st_size * 2 // 3 if size is None else size)
        return path.parent if path.suffix in (".mds", ".bin") else path

    return writing


def tar_with(place: slice, content: bytes) -> Callable[[Path], Path]:
    """Return a tar of members of a block each, changed; WebDataset reads it without an error."""

    def write(where: Path) -> Path:
        writers.tar(where / "a.tar", [(f"{number}.cls", b"1") for number in range(8)])
        assert len(data.open(where / "a.tar")) == 8
        found = bytearray((where / "a.tar").read_bytes())
        found[place] = content
        (where / "a.tar").write_bytes(found)
        return where / "a.tar"

    return write


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


def config_of(**changes: Any) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        writers.litdata(where / "lit", [ROWS], **changes)
        return where / "lit"

    return write


def unfinished(where: Path) -> Path:
    writer = ArrayRecordWriter(str(where / "whole"))
    for _ in range(40):
        writer.write(os.urandom(1 << 20))
    shutil.copy(where / "whole", where / "a.array_record")
    writer.close()
    assert (where / "a.array_record").stat().st_size > 1 << 20
    return where / "a.array_record"


def empty_records(where: Path) -> Path:
    writers.array_records(where / "a.array_record", [])
    return where


def lmdb_with(place: slice, content: bytes) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        found = bytearray((SAMPLES / "lmdb/data.mdb").read_bytes())
        found[place] = content
        (where / "data.mdb").write_bytes(found)
        return where

    return write


def tokens_with(at: int, form: str, value: int) -> Callable[[Path], Path]:
    def write(where: Path) -> Path:
        writers.megatron(where / "corpus", [[np.zeros(3, "u2")], [np.zeros(0, "u2"), np.ones(2, "u2")]], code=8)
        assert data.open(where / "corpus").lengths("tokens").tolist() == [3, 0, 2]
        found = bytearray((where / "corpus.idx").read_bytes())
        struct.pack_into(form, found, at, value)
        (where / "corpus.idx").write_bytes(found)
        return where / "corpus"

    return write


def shard_with(more: int, at: int | None = None) -> Callable[[Path], Path]:
    """Add to a number of an MDS shard: to the first size of its first sample, or to the one at a byte."""

    def write(where: Path) -> Path:
        path = index_of()(where) / "shard.00000.mds"
        found = bytearray(path.read_bytes())
        place = struct.unpack_from("<I", found, 4)[0] if at is None else at
        struct.pack_into("<I", found, place, struct.unpack_from("<I", found, place)[0] + more)
        path.write_bytes(found)
        return path.parent

    return write


REFUSED: dict[str, tuple[Callable[[Path], Path], type[TfdistError]]] = {
    "keys that end at the first dot": (
        members(("a/b.c.jpg", b"1"), ("a/b.d.cls", b"1"), ("a/e.jpg", b"2")),
        ConfigError,
    ),
    "a key that comes again": (members(("a.cls", b"1"), ("b.cls", b"1"), ("a.cls", b"2")), ConfigError),
    "a member that is missing": (members(("a.cls", b"1"), ("a.txt", b"1"), ("b.cls", b"2")), ConfigError),
    "a tar without examples": (members(("README", b"1")), ConfigError),
    "a tar that is cut": (cut("0.tar", write_tar), CorruptDataError),
    "a tar that is cut between members": (tar_with(slice(7 * 1024, None), b""), CorruptDataError),
    "tars that are joined": (tar_with(slice(10240, None), b"a" * 600), CorruptDataError),
    "no tar": (no_tar, CorruptDataError),
    "lines that are no JSON": (lines('{"a": 1}', "{"), CorruptDataError),
    "lines that are no objects": (lines('{"a": 1}', "[1]"), CorruptDataError),
    "objects in objects": (lines('{"a": {"b": 1}}'), ConfigError),
    "no line": (lines(""), ConfigError),
    "pickles": (index_of(column_encodings=["int", "pkl", "bytes", "str"]), ConfigError),
    "compressed shards": (index_of(compression="zstd", raw_data={"basename": "x.mds"}), ConfigError),
    "a shard that is missing": (index_of(raw_data={"basename": "x.mds"}), CorruptDataError),
    "a shard of another folder": (index_of(raw_data={"basename": "../mds/shard.00000.mds"}), CorruptDataError),
    "another number of samples": (index_of(samples=5), CorruptDataError),
    "a shard that is cut": (cut("mds/shard.00000.mds", index_of()), CorruptDataError),
    "a shard whose offsets are cut": (cut("mds/shard.00000.mds", index_of(), 10), CorruptDataError),
    "a sample of less than its columns": (shard_with(1), CorruptDataError),
    "a sample of less than their sizes": (shard_with(-48, at=8), CorruptDataError),
    "tokens of another version": (tokens_with(9, "<q", 2), CorruptDataError),
    "tokens of an unknown dtype": (tokens_with(17, "<b", 99), CorruptDataError),
    "tokens of more sequences": (tokens_with(18, "<q", 4), CorruptDataError),
    "tokens of a negative number": (tokens_with(34, "<i", -1), CorruptDataError),
    "tokens before their file": (tokens_with(46, "<q", -2), CorruptDataError),
    "tokens behind their file": (tokens_with(62, "<q", 8), CorruptDataError),
    "documents that begin late": (tokens_with(70, "<q", 1), CorruptDataError),
    "documents that do not rise": (tokens_with(78, "<q", 9), CorruptDataError),
    "documents of more sequences": (tokens_with(86, "<q", 4), CorruptDataError),
    "an index of tokens that is cut": (cut("corpus.idx", tokens_with(9, "<q", 1), 12), CorruptDataError),
    "a chunk that is cut": (cut("lit/chunk-0-1.bin", write_lit), CorruptDataError),
    "compressed chunks": (config_of(compression="zstd"), ConfigError),
    "chunks of pickles": (config_of(data_format=["int", "pickle", "numpy", "no_header_numpy:3"]), ConfigError),
    "chunks of another number of leaves": (config_of(data_format=["int"]), CorruptDataError),
    "an ArrayRecord file whose writer was not closed": (unfinished, CorruptDataError),
    "an ArrayRecord file that is cut": (cut("a.array_record-00001-of-00002", write_array_records), CorruptDataError),
    "ArrayRecord files without records": (lambda where: empty_records(where), ConfigError),
    "sequences that are read as examples": (lambda where: Path(write_sequences(where)), ConfigError),
    "an LMDB file that is cut": (lmdb_with(slice(-4096, None), b""), CorruptDataError),
    "an LMDB file with damaged pages": (lmdb_with(slice(2 * 4096, None), bytes(22 * 4096)), CorruptDataError),
    "an LMDB file of another version": (lmdb_with(slice(20, 24), b"\2\0\0\0"), CorruptDataError),
    "an LMDB file without pages": (lmdb_with(slice(40, 44), bytes(4)), CorruptDataError),
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


def test_shards_that_were_decompressed_are_read(tmp_path: Path) -> None:
    assert len(data.open(index_of(compression="zstd")(tmp_path))) == len(ROWS)


def test_numbers_that_mds_has_as_texts(tmp_path: Path) -> None:
    rows = [{"n": "12", "x": "0.5"}, {"n": "-3", "x": "1e3"}, {"n": "1.0", "x": "2"}]
    writers.mds(tmp_path / "mds", [rows], {"n": "str", "x": "str"})
    index = tmp_path / "mds/index.json"
    index.write_text(index.read_text().replace('"str", "str"', '"str_int", "str_float"'))
    examples = data.open(tmp_path / "mds")
    assert [(int(row["n"]), float(row["x"])) for row in examples.each([1, 0])] == [(-3, 1000.0), (12, 0.5)]
    with refused(CorruptDataError, mentions=["example 2"]):
        list(examples)


def test_the_error_of_a_compressed_tar_says_so(tmp_path: Path) -> None:
    compressed = tmp_path / "0.tar.gz"
    compressed.write_bytes(gzip.compress(b"0"))
    with pytest.raises(ConfigError, match="gunzip"):
        data.open(tmp_path)


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
    ("name", "renamed"), [("web.tar", {"text": "txt", "matrix": "npy"}), ("mds", {}), ("saved", {}), ("lit", {})]
)
def test_what_the_libraries_themselves_wrote_is_read(name: str, renamed: dict[str, str]) -> None:
    """`make.py` in the folder wrote them: WebDataset, MosaicML's streaming, LitData, and Hugging Face's datasets."""
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


def test_leaves_tokens_and_entries_are_those_that_were_written() -> None:
    leaves = data.open(SAMPLES / "lit")
    found = [(bool(row["inner.seen"]), row["inner.raw"]) for row in leaves]
    assert found == [(number % 2 == 0, b"x" * number) for number in range(7)]
    tokens = data.open(SAMPLES / "tokens")
    assert [row["tokens"].tolist() for row in tokens] == [list(range(number % 5 + 1)) for number in range(7)]
    assert tokens.lengths("tokens").tolist() == [number % 5 + 1 for number in range(7)]
    packed = data.pack(SAMPLES / "tokens", "tokens", 4, shuffle=False)
    assert np.concatenate([row["tokens"] for row in packed])[:18].tolist() == [
        token for row in tokens for token in row["tokens"].tolist()
    ]
    expected = {key.encode(): value.encode() for key, value in entries().items() if key != "00003"}
    for where in (SAMPLES / "lmdb", SAMPLES / "lmdb/data.mdb"):
        assert [(row["key"], row["value"]) for row in data.open(where)] == sorted(expected.items())


def test_records_of_several_kinds_are_named(tmp_path: Path) -> None:
    writers.array_records(tmp_path / "a.array_record", ROWS)
    raw = data.open(tmp_path / "a.array_record", records="raw")
    assert len(raw) == len(ROWS)
    assert raw[3]["record"] == raw[3:4][0]["record"] != raw[4]["record"]
    content = bytearray((tmp_path / "a.array_record").read_bytes())
    content[70] ^= 1
    (tmp_path / "b.array_record").write_bytes(content)
    with refused(CorruptDataError, mentions=("example 0",)):
        list(data.read(tmp_path / "b.array_record", global_batch_size=4, records="raw"))
    writers.sequences(tmp_path / "c.tfrecord", ROWS)
    with refused(ConfigError, name="list", mentions=("records='sequences'",)):
        data.open(tmp_path / "c.tfrecord")
    with refused(ConfigError, name="records"):
        data.open("memory://nowhere", records="raw")
