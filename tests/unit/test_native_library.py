"""The cache of the library of ops: it compiles once, keeps a library whole or not at all, and reports failures.

The compiler is a script that writes a given text; tests/integration has the real one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, MissingDependencyError, TfdistError
from tfdist.native import library
from tfdist.native.build_target import Target

HERE = Target.example()
OUTPUT = 'while [ "$1" != -o ]; do shift; done; echo "a library" > "$2"'
BUILD = """
import os, sys
from tfdist.native import library
from tfdist.native.build_target import Target
print(library.build(library.RECORDS, Target.example(), os.environ, on_start=lambda said: print(said, flush=True)).was)
"""


@pytest.fixture
def compiler(tmp_path: Path) -> Callable[[str], dict[str, str]]:
    """Writes the script; returns an environment that has it, and a cache of its own."""

    def write(body: str) -> dict[str, str]:
        path = tmp_path / "compiler"
        path.write_text(f"#!/bin/sh\necho $$ >> {tmp_path}/started\n{body}\n")
        path.chmod(0o755)
        return {**os.environ, "CXX": str(path), "TFDIST_CACHE_DIR": str(tmp_path / "my cache")}

    return write


def started(tmp_path: Path) -> list[int]:
    return [int(line) for line in (tmp_path / "started").read_text().split()]


def left_in(environ: dict[str, str]) -> list[str]:
    root = Path(environ["TFDIST_CACHE_DIR"])
    return sorted(f"{folder}/{path.suffix}" for folder in ("work", "logs", "ops") for path in (root / folder).iterdir())


def test_it_is_compiled_once_and_kept(compiler: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    environ, said = compiler(OUTPUT), []
    assert library.find(library.RECORDS, HERE, environ) is None
    built = library.build(library.RECORDS, HERE, environ, on_start=said.append)
    assert (built.was, library.find(library.RECORDS, HERE, environ)) == ("built", built.path)
    assert built.path.read_bytes().startswith(b"a library\n")
    assert library.build(library.RECORDS, HERE, environ, on_start=said.append) == replace(built, was="kept")
    assert len(started(tmp_path)) == 3  # two files, and the library of them
    assert [sentence.split()[0] for sentence in said] == ["Compiling"]
    assert library.build(library.RECORDS, HERE, environ, force=True) == built
    assert len(started(tmp_path)) == 6
    assert left_in(environ) == ["ops/.so"]


def test_another_tensorflow_machine_or_source_has_another_library(
    compiler: Callable[[str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = compiler(OUTPUT)
    places = {library.place(library.RECORDS, HERE, environ)}
    for other in (
        {"version": "2.16.2"},
        {"platform": "linux_aarch64"},
        {"libc": "glibc2.28"},
        {"package": "tf-nightly"},
    ):
        places.add(library.place(library.RECORDS, replace(HERE, **other), environ))
    copy = tmp_path / "sources"
    copy.mkdir()
    for path in library.SOURCES.glob("*.[ch]*"):
        (copy / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(library, "SOURCES", copy)
    assert library.place(library.RECORDS, HERE, environ) in places
    (copy / "crc32c.h").write_bytes((copy / "crc32c.h").read_bytes() + b"\n")
    assert library.place(library.RECORDS, HERE, environ) not in places
    assert len(places) == 5


@pytest.mark.parametrize("damage", [lambda b: b"", lambda b: b[:-1], lambda b: b + b"x", lambda b: b"A" + b[1:], None])
def test_a_damaged_library_counts_for_none(
    compiler: Callable[[str], dict[str, str]], damage: Callable[[bytes], bytes] | None
) -> None:
    environ = compiler(OUTPUT)
    path = library.build(library.RECORDS, HERE, environ).path
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    assert library.find(library.RECORDS, HERE, environ) is None
    assert library.build(library.RECORDS, HERE, environ).was == "built"
    assert library.find(library.RECORDS, HERE, environ) == path


def test_of_two_processes_one_compiles(compiler: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "go")
    environ = compiler(f"[ -p {tmp_path}/go ] && read line < {tmp_path}/go && rm {tmp_path}/go; {OUTPUT}")
    processes = []
    try:
        for first_word in ("Compiling", "Waiting"):
            processes.append(
                subprocess.Popen([sys.executable, "-c", BUILD], env=environ, stdout=subprocess.PIPE, text=True)
            )
            assert processes[-1].stdout.readline().startswith(first_word)
        (tmp_path / "go").write_text("go\n")
        assert [process.communicate(timeout=200)[0] for process in processes] == ["built\n", "kept\n"]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    assert len(started(tmp_path)) == 3


def test_files_are_compiled_side_by_side_one_on_every_processor(
    compiler: Callable[[str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    running = tmp_path / "running"
    running.mkdir()
    # the first three go on when all three run; the linker waits for nobody
    alone = f"case $* in *-shared*) {OUTPUT}; exit;; esac; touch {running}/$$; tries=0"
    wait = f'while [ "$(ls {running} | wc -l)" -lt 3 ]; do sleep 0.05; tries=$((tries + 1)); [ $tries -lt 2000 ]; done'
    environ = compiler(f"set -e; {alone}; {wait}; {OUTPUT}")
    assert library.build(library.COLLECTIVES, HERE, environ).was == "built"
    assert len(started(tmp_path)) == len(library.COLLECTIVES.sources("*.cc")) + 1


def test_an_interrupted_build_ends_the_compiler_and_leaves_nothing(
    compiler: Callable[[str], dict[str, str]], tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "go")
    environ = compiler(f"echo half > records.so; echo > {tmp_path}/go; read line < {tmp_path}/go")
    process = subprocess.Popen(
        [sys.executable, "-c", BUILD], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        (tmp_path / "go").read_text()  # the compiler is at work
        process.send_signal(signal.SIGINT)
        process.wait(timeout=200)
    finally:
        process.kill()
        process.wait()
    assert not any(psutil.pid_exists(pid) for pid in started(tmp_path))
    assert left_in(environ) == ["logs/.log"]
    assert library.build(library.RECORDS, HERE, compiler(OUTPUT)).was == "built"


def test_a_compiler_that_fails_is_reported_with_its_first_error(compiler: Callable[[str], dict[str, str]]) -> None:
    environ = compiler("echo 'a.cc: In function f:'; echo 'a.cc:7:1: error: no such type' >&2; exit 4")
    with refused(TfdistError, mentions=["code 4", "a.cc:7:1: error: no such"]) as caught:
        library.build(library.RECORDS, HERE, environ)
    assert caught.value.path is not None
    assert "In function f" in Path(caught.value.path).read_text()
    assert left_in(environ) == ["logs/.log"]


def test_without_a_compiler(compiler: Callable[[str], dict[str, str]], tmp_path: Path) -> None:
    environ = compiler(OUTPUT)
    with refused(MissingDependencyError, name="CXX", received="absent"):
        library.build(library.RECORDS, HERE, {**environ, "CXX": "absent"})
    nothing = {"PATH": str(tmp_path), "TFDIST_CACHE_DIR": environ["TFDIST_CACHE_DIR"]}
    with refused(MissingDependencyError, name="CXX", mentions=["apt-get install g++"]) as caught:
        library.build(library.RECORDS, HERE, nothing)
    assert caught.value.received is None
    assert not Path(environ["TFDIST_CACHE_DIR"]).exists()
    kept = library.build(library.RECORDS, HERE, environ).path
    assert library.build(library.RECORDS, HERE, nothing).path == kept


def test_a_cache_that_cannot_be_written(
    compiler: Callable[[str], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = compiler(OUTPUT)
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "cache"
    with refused(ConfigError, name="TFDIST_CACHE_DIR", path=folder, mentions=["Not a directory"]):
        library.build(library.RECORDS, HERE, {**environ, "TFDIST_CACHE_DIR": str(folder)})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "the disk is full")

    monkeypatch.setattr(os, "replace", full)
    with refused(ConfigError, name="TFDIST_CACHE_DIR", mentions=["the disk is full"]):
        library.build(library.RECORDS, HERE, environ)
    assert left_in(environ) == []


def test_a_kept_library_is_used_from_a_cache_that_cannot_be_written(
    compiler: Callable[[str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = compiler(OUTPUT)
    built = library.build(library.RECORDS, HERE, environ)

    def forbidden(*_: object) -> None:
        raise ConfigError("the cache folder cannot be written")

    monkeypatch.setattr("tfdist.cache.make", forbidden)
    assert library.build(library.RECORDS, HERE, environ) == replace(built, was="kept")
