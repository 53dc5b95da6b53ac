"""The native ops as a part of TensorFlow: graphs, pipelines, their maps, and what happens where they cannot be had."""

import ctypes
import functools
import logging
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration.forks import Forks
from tests.integration.test_records import Shard, ops, payloads
from tfdist.data.format.record_framing import masked_crc
from tfdist.errors import ConfigError
from tfdist.native import Records, build_target, library, records
from tfdist.native import ops as native
from tfdist.variables import NATIVE

__all__ = ["ops"]  # a fixture


@pytest.fixture
def shard(tmp_path: Path) -> Shard:
    return Shard(tmp_path / "a", payloads([40] * 64))


@pytest.mark.quick
def test_a_pipeline_reads_rows_in_parallel_and_lets_go_of_files(ops: Records, shard: Shard) -> None:
    import tensorflow as tf

    ops.unmap()
    offsets = tf.constant(shard.offsets, tf.int64)

    def read(batch: Any) -> tuple[Any, Any]:
        index = tf.range(batch * 8, batch * 8 + 8)
        return ops.read_rows(
            [str(shard.path)], tf.zeros(8, tf.int32), tf.gather(offsets, index), tf.fill([8], True), 40
        )

    pipeline = tf.data.Dataset.range(8).map(read, num_parallel_calls=2)
    assert [spec.shape.as_list() for spec in pipeline.element_spec] == [[8, 40], [8]]
    batches = list(pipeline.as_numpy_iterator())
    assert [row.tobytes() for rows, _ in batches for row in rows] == shard.records
    assert all(ok.all() for _, ok in batches)
    del pipeline
    assert ops.mapped == 0


@pytest.mark.quick
def test_shapes_in_a_graph(ops: Records) -> None:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int64)])
    def read(offset: Any) -> Any:
        zeros = tf.zeros_like(offset)
        part, ok = ops.read_records(["a"], tf.cast(zeros, tf.int32), offset, zeros, zeros, zeros, zeros < 0)
        rows, _ = ops.read_rows(["a"], tf.cast(zeros, tf.int32), offset, zeros < 0, 7)
        return part, ok, rows

    part, ok, rows = read.get_concrete_function().structured_outputs
    assert [part.shape.as_list(), ok.shape.as_list(), rows.shape.as_list()] == [[None], [None], [None, 7]]


@pytest.mark.quick
def test_a_file_is_mapped_once_while_it_is_used(ops: Records, shard: Shard, tmp_path: Path) -> None:
    ops.unmap()
    assert ops.mapped == 0

    def read(path: Path) -> None:
        ops.read_records([str(path)], [0], shard.offsets[:1], [40], [0], [40], [True])
        ops.read_rows([str(path)], [0], shard.offsets[:1], [True], 40)

    os.link(shard.path, tmp_path / "same")
    read(shard.path)
    read(tmp_path / "same")
    assert ops.mapped == 1
    Shard(tmp_path / "new", payloads([40] * 64, seed=1)).path.replace(shard.path)
    read(shard.path)
    assert ops.mapped == 2
    read(tmp_path / "same")
    ops.unmap()
    assert ops.mapped == 0


@pytest.mark.quick
def test_checksums_are_those_of_the_reference(ops: Records, tmp_path: Path) -> None:
    main = tmp_path / "crc.cc"
    main.write_text(
        '#include "crc32c.h"\n'
        'extern "C" uint32_t masked(const uint8_t* data, size_t size) { return tfdist::MaskedCrc32c(data, size); }\n'
    )
    compiler = shutil.which("g++") or "c++"
    flags = ["-DTFDIST_PORTABLE_CRC", "-std=c++17", "-O2", "-fPIC", "-shared", f"-I{library.SOURCES}"]
    subprocess.run([compiler, *flags, str(main), "-o", str(tmp_path / "crc.so")], check=True, timeout=200)
    portable = ctypes.CDLL(str(tmp_path / "crc.so")).masked
    dispatched = ctypes.CDLL(str(ops.path)).tfdist_masked_crc
    assert masked_crc(b"123456789") == 0xC78AB0E5
    for size in (*range(40), 1535, 1536, 1537, 4607, 4608, 4617, 60000, 100_001):
        data = np.random.default_rng(size).bytes(size)
        for function in (portable, dispatched):
            function.restype = ctypes.c_uint32
            function.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
            assert function(data, size) == masked_crc(data), size


FIRST_USE = """
import logging, sys, tempfile
logging.basicConfig(format="said: %(message)s", stream=sys.stdout, force=True)
from tfdist.native import records
ops = records()
assert ops is not None and records() is ops
with tempfile.NamedTemporaryFile() as file:
    file.write(bytes(20))
    file.flush()
    print("read", ops.read_records([file.name], [0], [0], [3], [0], [3], [False])[0].numpy().tolist())
"""


@pytest.mark.parametrize("damage", ["", "for another machine"])
def test_the_first_use_compiles_and_says_so_once(forking: Forks, tmp_path: Path, damage: str) -> None:
    environ = {**os.environ, "TFDIST_CACHE_DIR": str(tmp_path / "cache")}
    if damage:
        place = library.place(library.RECORDS, build_target.observe(), environ)
        place.parent.mkdir(parents=True)
        place.write_bytes(library.sealed(damage.encode()))
    (tmp_path / "first_use.py").write_text(FIRST_USE)
    with forking.start(str(tmp_path / "first_use.py"), TFDIST_CACHE_DIR=environ["TFDIST_CACHE_DIR"]) as process:
        out, err = (text.decode() for text in process.communicate())
    assert process.returncode == 0, err
    said, read = out.splitlines()
    assert said.startswith("said: Compiling tfdist's ops")
    assert read == r"read [b'\x00\x00\x00']"
    assert [path.suffix for path in (tmp_path / "cache" / "ops").iterdir()] == [".so"]
    assert not list((tmp_path / "cache" / "work").iterdir())
    assert not list((tmp_path / "cache" / "logs").iterdir())


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A process that has not asked for the ops yet, with an empty cache."""
    monkeypatch.setenv("TFDIST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv(NATIVE.name, raising=False)
    monkeypatch.setattr(native, "_load", functools.cache(native._load.__wrapped__))
    return tmp_path / "cache"


@pytest.mark.quick
def test_without_a_compiler(fresh: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(fresh))
    assert records() is None
    assert records() is None
    (said,) = caplog.records
    assert said.levelno == logging.WARNING
    assert "apt-get install g++" in said.message


@pytest.mark.quick
def test_with_a_compiler_that_fails(
    fresh: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'a.cc:1:1: error: no'; exit 3\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert records() is None
    said = caplog.records[-1].message
    (log,) = (fresh / "logs").iterdir()
    assert "a.cc:1:1: error: no" in said
    assert str(log) in said
    assert not list((fresh / "ops").iterdir())


@pytest.mark.quick
def test_with_a_cache_that_cannot_be_written(
    fresh: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh.write_text("a file where the folder should be")
    assert records() is None
    assert "TFDIST_CACHE_DIR" in caplog.records[-1].message


@pytest.mark.quick
def test_the_switch(fresh: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NATIVE.name, "0")
    assert records() is None
    assert not fresh.exists()
    monkeypatch.setenv(NATIVE.name, "maybe")
    with pytest.raises(ConfigError, match="TFDIST_NATIVE is 'maybe'"):
        records()
    assert not caplog.records
