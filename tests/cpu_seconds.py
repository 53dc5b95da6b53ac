"""Counts the CPU seconds of each file of tests, those of the processes that it starts included, and prints the most.

Wall time says little where several processes share the processors, or the machine does other things.
`pytest --cpu-seconds FILE` writes those of each test, too; to ask after each one takes a minute of a whole run.
"""

import csv
import os
import resource
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import psutil
import pytest

LEAST_SECONDS = 10.0  # of files that are printed


def spent() -> float:
    """Return the CPU seconds of this process, of those that it has waited for, and of those that still run."""
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.Error:  # it has ended meanwhile
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


class Meter:
    """Counts in one process; where processes share the files, it adds up what they tell."""

    def __init__(self, root: Path, file: Path | None) -> None:
        self._root, self._began, self._file = root, spent(), file
        self.seconds: Counter[str] = Counter()
        self.tests: Counter[str] = Counter()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
        """Count at the end of a file, when what its fixtures have started has ended too."""
        try:
            return (yield)
        finally:
            if self._file is not None or nextitem is None or nextitem.path != item.path:
                now = spent()
                self.seconds[os.path.relpath(item.path, self._root)] += now - self._began
                if self._file is not None:
                    self.tests[item.nodeid] = now - self._began
                self._began = now

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tell the process that has shared out the files."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput["cpu_seconds"] = dict(self.seconds)
            session.config.workeroutput["cpu_seconds_of_tests"] = dict(self.tests)
        elif self._file is not None:
            with self._file.open("w", newline="") as out:
                csv.writer(out).writerows((f"{seconds:.2f}", test) for test, seconds in self.tests.most_common())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """Add the seconds of a process that has ended; one that has crashed reports none."""
        told = getattr(node, "workeroutput", {})
        self.seconds.update(told.get("cpu_seconds", {}))
        self.tests.update(told.get("cpu_seconds_of_tests", {}))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the files that take most."""
        most = [(name, seconds) for name, seconds in self.seconds.most_common() if seconds >= LEAST_SECONDS]
        if most:
            terminalreporter.section(f"{self.seconds.total():.0f} CPU seconds")
            for name, seconds in most:
                terminalreporter.write_line(f"{seconds:7.0f}  {name}")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-seconds", type=Path, metavar="FILE", help="write the CPU seconds of each test as CSV")


def pytest_configure(config: pytest.Config) -> None:
    """Count in every process."""
    config.pluginmanager.register(
        Meter(Path(__file__).parents[1], config.getoption("--cpu-seconds")), "tfdist-cpu-seconds"
    )
