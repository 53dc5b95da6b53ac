"""The native collectives without TensorFlow, in shared memory and over TCP: their test programs, compiled and run."""

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tfdist.native import build_target, library

CHECKS = Path(__file__).parents[1] / "native"
DEADLINE_SECONDS = 800


def together(paths: Sequence[Path]) -> str:
    """Return a translation unit of several."""
    return "".join(f'#include "{path}"\n' for path in paths)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Compile the common part of the programs; return a function that builds one from the files of its folder."""
    folder = tmp_path_factory.mktemp("native")
    compiler = build_target.find_program(os.environ, "CXX", *build_target.COMPILERS)
    assert compiler is not None
    core = [path for path in library.COLLECTIVES.sources("*.cc") if path.name not in ("ops.cc", "cancellation.cc")]
    # With -O1 the compiler takes half as long again, and nothing here runs long enough to gain from it.
    command = [compiler, "-std=c++17", "-Og", "-pthread", "-Wall", "-Wextra", "-Werror"]
    # In one translation unit, so files have no name in common: headers are read once, which is most of the time.
    whole = folder / "core.cc"
    whole.write_text(together(core))
    subprocess.run([*command, "-c", str(whole)], cwd=folder, check=True, timeout=DEADLINE_SECONDS)

    def make(name: str) -> Path:
        whole = folder / f"check_{name}.cc"
        whole.write_text(together(sorted((CHECKS / name).glob("*.cc"))))
        made = [str(whole), str(folder / "core.o"), "-o", str(folder / name)]
        subprocess.run([*command, *made], check=True, timeout=DEADLINE_SECONDS)
        return folder / name

    return make


def ran(*command: str | Path) -> str:
    """Run a program that finds nothing wrong; return what it said."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def check(program: Callable[[str], Path]) -> Callable[..., str]:
    """Return a function that runs a part of the program for shared memory."""
    path = program("shared_memory")
    return lambda *arguments: ran(path, *arguments)


def test_over_tcp_every_algorithm_is_right_and_every_failure_names_its_member(
    program: Callable[[str], Path],
) -> None:
    """Neither strangers nor other orders of operations disturb any member; see the head of the program."""
    parts = ("pure", "algorithms", "orders", "strangers", "failures")
    said = ran(program("tcp"), *parts)
    assert [part for part in parts if f"{part}: ok" in said] == list(parts)


def test_replicas_of_one_process(program: Callable[[str], Path]) -> None:
    """Every operation in orders that differ, steps that are broken off, and what is said; see the program."""
    ran(program("replicas"))


@pytest.mark.parametrize("part", ["threads", "hosts", "processes", "waits", "restart"])
def test_operations_in_orders_that_differ_between_members(check: Callable[..., str], part: str) -> None:
    check(part)


def test_a_member_that_is_killed_or_stopped_is_named_by_all_others(check: Callable[..., str]) -> None:
    """On one host and on two; every fourth is stopped. tests/soak/collectives_killed.py does it some hundred times."""
    check("kill", "8")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_process_of_another_user_has_no_part_in_a_job(check: Callable[..., str]) -> None:
    """Neither of its memory nor over TCP, by whatever key, garbage or silence; the job comes together beside it."""
    check("user")
