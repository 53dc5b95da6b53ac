"""Running a suite in a process of its own, again and again until every test has an outcome."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.peers.outcomes import Outcome, read_log
from tests.peers.suites import Way

REPOSITORY = Path(__file__).parents[2]
TEST_SECONDS = 180  # a test of the suites takes up to twenty
SUITE_SECONDS = 3600
ORDERLY = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)


class BrokenError(Exception):
    """A suite could not be run at all."""


def run(
    files: Sequence[Path], root: Path, way: Way, *, with_tfdist: bool, left_out: Sequence[str], folder: Path
) -> dict[str, Outcome]:
    """Return the outcome of each test in the files.

    A test that ends its process, or runs into its deadline, has the outcome "ended", and the others are run without it.

    Args:
        files: what to run.
        root: the checkout; names of tests are relative to it.
        way: how a strategy of tfdist comes in.
        with_tfdist: whether a strategy of tfdist is there.
        left_out: patterns of names of tests that are not run.
        folder: for the log and what the processes print.
    Raises:
        BrokenError: no test was run.
    """
    name = "tfdist" if with_tfdist else "alone"
    log, skip, printed = (folder / f"{name}.{kind}" for kind in ("jsonl", "skip", "txt"))
    for earlier in (log, printed):
        earlier.unlink(missing_ok=True)
    outcomes: dict[str, Outcome] = {}
    command = [
        *(sys.executable, "-m", "pytest", "-c", os.devnull, f"--rootdir={root}", "--noconftest"),
        *("-p", "tests.peers.plugin", "-p", "no:cacheprovider", "--import-mode=importlib", "-q", "--tb=short"),
        *(f"--timeout={TEST_SECONDS}", "--timeout-method=thread", "--continue-on-collection-errors"),
        *(f"--peers-log={log}", f"--peers-skip={skip}", f"--peers-way={way.value}"),
        *(["--peers-tfdist"] if with_tfdist else []),
        *map(str, files),
    ]
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow", "PYTHONPATH": str(REPOSITORY)}
    while True:
        skip.write_text("".join(f"{test}\n" for test in (*left_out, *outcomes)), encoding="utf-8")
        code = _one_process(command, environment, folder, printed)
        seen = read_log(log.read_text(encoding="utf-8").splitlines()) if log.exists() else {}
        new = [outcome for test, outcome in seen.items() if test not in outcomes]
        outcomes = seen
        if any(outcome.result == "ended" for outcome in new):
            continue  # it was ended in the middle of a test: the others are still to be run
        if not outcomes or code not in ORDERLY:
            raise BrokenError(f"pytest ended with code {code} after {len(outcomes)} tests; {printed} says why.")
        return outcomes


def _one_process(command: list[str], environment: dict[str, str], folder: Path, printed: Path) -> int:
    with printed.open("a", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SUITE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise BrokenError(f"the suite took longer than {SUITE_SECONDS} s; {printed} says how far it is.") from None
    return done.returncode
