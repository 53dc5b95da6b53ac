"""`tfdist build horovod` as a user runs it: out of the cache into a fresh environment, and every way to fail.

The set-up of the tests has built the wheel. Here nothing is compiled: a compiler that fails, or never ends, stands for
the real one.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.integration.agents import ROOT, says, wait_until

DEADLINE_SECONDS = 800
SMALL = ["--no-install", "--jobs", "1"]


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@contextmanager
def building(
    *arguments: object, python: Path | str = sys.executable, **variables: str
) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [python, "-m", "tfdist", "build", "horovod", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'packaging' / 'horovod'}", **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a test run in the background of a shell ignores SIGINT, and would hand that on
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)


def built(*arguments: object, python: Path | str = sys.executable, **variables: str) -> tuple[int, str, str]:
    with building(*arguments, python=python, **variables) as process:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, out, err


def compiler(folder: Path, script: str) -> str:
    """PATH with compilers in front that run a script."""
    folder.mkdir()
    for name in ("c++", "g++"):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def endless_compiler(tmp_path: Path) -> tuple[str, Path]:
    """PATH with a compiler that says that it was called and never ends, and the file in which it says so."""
    called = tmp_path / "called"
    return compiler(tmp_path / "bin", f"echo $$ > '{called}.new'; mv '{called}.new' '{called}'; exec sleep 600"), called


def left_in(cache: Path) -> list[str]:
    """Return the files in the cache besides the locks, which are empty files that stay."""
    return sorted(str(path.relative_to(cache)) for path in cache.glob("*/*") if path.parent.name != "locks")


def gone(pid: int) -> Callable[[], bool]:
    return lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


@pytest.mark.quick
def test_what_is_installed_stays() -> None:
    code, out, err = built()
    assert code == 0, err
    assert re.match(r"Horovod \S+ for TensorFlow \S+ is ", out)
    assert "gloo" in out


@pytest.mark.quick
def test_no_compiler_is_said_before_anything_is_fetched(tmp_path: Path, cache: Path) -> None:
    code, out, err = built(*SMALL, TFDIST_CACHE_DIR=str(cache), PATH=str(tmp_path))
    assert (code, out) == (1, "")
    assert says(err, "(g++)", "PATH", "apt-get install g++")
    assert "fetching" not in err
    assert left_in(cache) == []


@pytest.mark.quick
def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    code, _, err = built(*SMALL, TFDIST_CACHE_DIR=str(tmp_path / "file" / "cache"))
    assert code == 2
    assert says(err, "Not a directory", "export TFDIST_CACHE_DIR=")


@pytest.mark.quick
def test_an_index_that_cannot_be_reached(cache: Path) -> None:
    nowhere = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1", "PIP_CONFIG_FILE": os.devnull}
    nowhere |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "no_proxy": "127.0.0.1"}
    code, _, err = built(*SMALL, TFDIST_CACHE_DIR=str(cache), **nowhere)
    assert code == 1
    assert "Horovod was not built" in err
    assert "PIP_INDEX_URL" in err
    (log,) = (cache / "logs").iterdir()
    assert f"The full log: {log}" in err
    assert "Connection refused" in log.read_text()
    assert left_in(cache) == [f"logs/{log.name}"]


def test_a_broken_compiler_is_the_cause_and_the_log_is_kept(tmp_path: Path, cache: Path) -> None:
    path = compiler(tmp_path / "bin", "echo 'x.cc:1:1: fatal error: the compiler is broken' >&2; exit 1")
    log = tmp_path / "the log"
    code, _, err = built(*SMALL, "--log", log, TFDIST_CACHE_DIR=str(cache), PATH=path)
    assert code == 1
    assert "Horovod was not built: " in err
    assert "the compiler is broken" in err
    assert f"The full log: {log}" in err
    assert "CMake" in log.read_text()
    assert left_in(cache) == []


def test_ctrl_c_ends_what_it_waits_for_and_leaves_nothing(cache: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:  # accepts a request, and never answers
        index.settimeout(DEADLINE_SECONDS)
        silent = {"PIP_INDEX_URL": f"http://127.0.0.1:{index.getsockname()[1]}/simple", "PIP_CONFIG_FILE": os.devnull}
        silent |= {"PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": "", "no_proxy": "127.0.0.1"}
        with building(*SMALL, TFDIST_CACHE_DIR=str(cache), **silent) as process:
            with index.accept()[0]:
                children = psutil.Process(process.pid).children(recursive=True)
                assert any("pip" in child.cmdline() for child in children)
                process.send_signal(signal.SIGINT)
                assert process.wait(timeout=DEADLINE_SECONDS) == 130
            for child in children:
                wait_until(gone(child.pid), f"{child.pid} goes on after Ctrl-C")
    assert left_in(cache) == []


@pytest.fixture(scope="module")
def kept_wheel() -> Path:
    """The wheel that the set-up of the tests has left in the cache of this machine; made if somebody removed it."""
    command = [sys.executable, "-m", "tfdist", "build", "horovod", "--no-install"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.splitlines()[-1].removeprefix("The wheel: "))


def into(cache: Path, wheel: Path) -> Path:
    """Put a wheel into a cache, as the build that made it would have done."""
    place = cache / "wheels" / wheel.parent.name / wheel.name
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = place.with_suffix(".new")
    temporary.write_bytes(wheel.read_bytes())
    temporary.rename(place)
    return place


def test_of_two_builds_at_once_one_is_killed_and_leaves_nothing_and_the_other_takes_a_wheel_that_came(
    tmp_path: Path, cache: Path, kept_wheel: Path
) -> None:
    path, called = endless_compiler(tmp_path)
    with building(*SMALL, TFDIST_CACHE_DIR=str(cache), PATH=path) as first:
        wait_until(called.exists, "the compiler was never called")
        children = psutil.Process(first.pid).children(recursive=True)
        assert int(called.read_text()) in [child.pid for child in children]
        with building(*SMALL, TFDIST_CACHE_DIR=str(cache), PATH=path) as second:
            assert second.stderr is not None
            assert second.stderr.readline().partition(",")[0] == f"waiting for process {first.pid}"
            place = into(cache, kept_wheel)
            first.kill()
            first.wait(timeout=DEADLINE_SECONDS)
            for child in children:
                wait_until(gone(child.pid), f"{child.pid} goes on after its build was killed")
            out, err = second.communicate(timeout=DEADLINE_SECONDS)
            assert second.returncode == 0, err
    wait_until(lambda: not list((cache / "work").iterdir()), "a temporary folder is left")
    assert "came from the cache" in out
    assert f"The wheel: {place}" in out
    # the log of the killed build shows its progress
    assert [path for path in left_in(cache) if not path.startswith("logs/")] == [f"wheels/{place.parent.name}"]
    assert "compiling" not in err


@pytest.fixture
def fresh_python(tmp_path: Path) -> Path:
    """A new virtual environment that has all packages of this one but Horovod."""
    from tfdist.native.build_target import observe

    packages = tmp_path / "packages"
    packages.mkdir()
    for entry in observe().root.iterdir():
        if not entry.name.lower().startswith("horovod") and not entry.name.endswith(".pth"):
            (packages / entry.name).symlink_to(entry)
    command = [sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"]  # pip is one of the packages
    subprocess.run(command, check=True, timeout=DEADLINE_SECONDS)
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return tmp_path / "venv" / "bin" / "python"


@pytest.mark.release
def test_a_fresh_environment_takes_the_wheel_from_the_cache(
    fresh_python: Path, tmp_path: Path, cache: Path, kept_wheel: Path
) -> None:
    into(cache, kept_wheel)
    no_compiler = {"TFDIST_CACHE_DIR": str(cache), "PATH": str(tmp_path)}
    with (
        building(python=fresh_python, **no_compiler) as first,
        building(python=fresh_python, **no_compiler) as second,
    ):
        said = [process.communicate(timeout=DEADLINE_SECONDS) for process in (first, second)]
        assert first.returncode == second.returncode == 0, said
    outputs = sorted(out for out, _ in said)
    assert says(outputs[0], "came from the cache", "gloo")
    assert says(outputs[1], "is installed", "gloo")  # by the other one, in the middle of whose work it came
    assert "came from the cache" not in outputs[1]
    assert [path.name for path in cache.iterdir()] == ["wheels"]  # a cache of others, which cannot be written, will do
    (site,) = fresh_python.parents[1].glob("lib/python*/site-packages")
    (record,) = site.glob("horovod-*.dist-info/tfdist-build.json")
    (library,) = site.glob("horovod/tensorflow/mpi_lib.*.so")
    whole = record.read_text()
    record.write_text(re.sub(r'"tensorflow": "[^"]+"', '"tensorflow": "2.1.0"', whole))
    library.write_bytes(b"not a library")
    code, out, err = built(python=fresh_python, **no_compiler)
    assert code == 0, err
    assert "came from the cache" in out
    assert record.read_text() == whole
    assert library.stat().st_size > 1_000_000


@pytest.mark.release
def test_a_wheel_that_does_not_work_here_is_said_to_be_so(
    fresh_python: Path, tmp_path: Path, cache: Path, kept_wheel: Path
) -> None:
    place = into(cache, kept_wheel)
    with zipfile.ZipFile(kept_wheel) as whole, zipfile.ZipFile(place, "w") as broken:
        for entry in whole.infolist():
            broken.writestr(entry, b"" if "mpi_lib" in entry.filename else whole.read(entry))
    variables = {"TFDIST_CACHE_DIR": str(cache), "PATH": str(tmp_path), "TMPDIR": str(tmp_path)}
    code, _, err = built(python=fresh_python, **variables)
    assert code == 1
    assert [str(log) in err for log in tmp_path.glob("tfdist-*")] == [True]
    assert says(err, "Horovod was not installed", "does not work")
    assert "--force" in err
