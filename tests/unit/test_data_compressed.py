"""Compressed sources that unpack to nothing whole, or to more than memory holds: errors that say what to do."""

import gzip
import io
import types
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.refusals import refused
from tfdist import data
from tfdist.data.format import record_framing
from tfdist.errors import ConfigError, CorruptDataError, TfdistError

ROWS = gzip.compress(b"x,y\n" + b"1,2\n" * 50_000)


def header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": "<f8"})
    return file.getvalue()


def archive(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("x.npy", content)
    return file.getvalue()


def flipped(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


CASES: dict[str, tuple[str, Callable[[], bytes], type[TfdistError], list[str]]] = {
    "a record of terabytes": (
        "a.tfrecord.gz",
        lambda: gzip.compress(record_framing.header(1 << 40) + bytes(1 << 20)),
        CorruptDataError,
        ["record 0", "2147483647"],
    ),
    "an array of petabytes": ("a.npz", lambda: archive(header((1 << 50,))), ConfigError, ["'x'", "npy"]),
    "a damaged table": ("a.csv.gz", lambda: flipped(ROWS, len(ROWS) // 2), CorruptDataError, ["decompressed"]),
    "a table that was cut": ("a.csv.gz", lambda: ROWS[:-20], CorruptDataError, ["decompressed"]),
    "a table that is not packed": ("a.csv.gz", lambda: b"x,y\n1,2\n", CorruptDataError, ["decompressed"]),
    "a damaged stream of an archive": (
        "a.npz",
        lambda: flipped(archive(header((9,)) + np.random.default_rng(1).bytes(72)), 60),
        CorruptDataError,
        ["NumPy"],
    ),
    "a header in Latin-1": (
        "a.csv",
        lambda: "größe,label\n1,2\n".encode("latin-1"),
        ConfigError,
        ["UTF-8", "iconv"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_be_unpacked_is_told(case: str, tmp_path: Path) -> None:
    name, content, kind, facts = CASES[case]
    (tmp_path / name).write_bytes(content())
    with refused(kind, mentions=[str(tmp_path / name), *facts]):
        data.write(str(tmp_path / name), tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_what_is_larger_than_memory_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 8)))
    data.write({"x": np.zeros((2, 4000))}, tmp_path / "shards")
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress((tmp_path / "shards" / "data-00000.tfrecord").read_bytes()))
    for name in ("a.npz", "a.tfrecord.gz"):
        assert data.write(str(tmp_path / name), tmp_path / f"of {name}").examples
    monkeypatch.setattr(psutil, "virtual_memory", lambda: types.SimpleNamespace(available=30_000))
    for name, what in (("a.npz", "array 'x'"), ("a.tfrecord.gz", "record 0")):
        with refused(ConfigError, mentions=[what, "29.3 KiB"]) as caught:
            data.write(str(tmp_path / name), tmp_path / "out")
        assert int(caught.value.received or 0) // 1024 in range(60, 70)
