"""A pytest plugin: runs the tests of Keras or TensorFlow with or without tfdist, and writes down what becomes of each.

A test of Keras runs, with its `setUp`, inside the scope of a strategy; one that makes a `MirroredStrategy` by itself is
given tfdist's. Tests of TensorFlow are generated from named strategies: the mirrored ones get two logical CPUs, and
come from tfdist or from TensorFlow; tests of other strategies, and of graphs without eager execution, are left out.

Private names, read in TensorFlow 2.21: `combinations.NamedDistribution` and its `_distribution_fn`, `required_gpus`;
`context._reset_context`, by which its tests begin the runtime anew.
"""

import contextlib
import functools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.peers.outcomes import matches
from tests.peers.suites import Way

CPUS = 3  # TensorFlow's tests name the devices 1 and 2
#: the name that a generated test has in its own, and the devices of its strategy
DISTRIBUTIONS = {"MirroredCPUAndGPU": ["CPU:0", "CPU:1"], "Mirrored2CPU": ["CPU:1", "CPU:2"]}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("peers")
    group.addoption("--peers-tfdist", action="store_true", help="with a strategy of tfdist")
    group.addoption("--peers-way", choices=[way.value for way in Way], help="how a strategy of tfdist comes in")
    group.addoption("--peers-log", type=Path, help="gets a line of JSON where a test begins and where it ends")
    group.addoption("--peers-skip", type=Path, help="what is not run, or not again: patterns of names, one in a line")


def pytest_configure(config: pytest.Config) -> None:
    import keras  # noqa: F401  the installed one, whatever checkout the tests are in
    from absl import flags

    flags.FLAGS(["peers"])  # parsed by the main() of TensorFlow's tests, which pytest does not run
    sys.path.append(str(config.rootpath))  # tests of Keras import its conftest
    way, with_tfdist = Way(config.getoption("--peers-way")), config.getoption("--peers-tfdist")
    if way is not Way.REPLACED:  # those tests split the CPU by themselves
        _split_cpu()
    if way is Way.COMBINATIONS:
        config.pluginmanager.register(_Combinations(with_tfdist=with_tfdist))
    elif with_tfdist:
        config.pluginmanager.register(_InScope() if way is Way.SCOPE else _Replaced())
    config.pluginmanager.register(_Log(config.getoption("--peers-log")))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    path = config.getoption("--peers-skip")
    patterns = path.read_text(encoding="utf-8").splitlines() if path else []
    items[:] = [item for item in items if not any(matches(pattern, item.nodeid) for pattern in patterns)]


class _InScope:
    """Runs each test under a strategy that is made for it.

    The `setUp` of Keras' own `TestCase` clears Keras' session, and with it any scope that was entered before: the scope
    is entered behind it, so that what a test's `setUp` goes on to make is made in the scope.
    """

    def __init__(self) -> None:
        from keras.src.testing import TestCase

        clear = TestCase.setUp

        @functools.wraps(clear)
        def set_up(case: TestCase) -> None:
            clear(case)
            case.enterContext(_scope())

        TestCase.setUp = set_up
        self._entering = TestCase

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Function) -> Iterator[None]:
        if item.cls is not None and issubclass(item.cls, self._entering):
            return (yield)
        with _scope():
            return (yield)


@contextlib.contextmanager
def _scope() -> Iterator[None]:
    import tensorflow as tf

    strategy = _mirrored(["CPU:0", "CPU:1"])
    scope = strategy.scope()
    scope.__enter__()
    try:
        yield
    finally:
        if tf.distribute.get_strategy() is strategy:  # the test has not cleared the session by itself
            scope.__exit__(None, None, None)


class _Replaced:
    """Lets tests that make a `tf.distribute.MirroredStrategy` make one of tfdist's."""

    def __init__(self) -> None:
        import tensorflow as tf

        import tfdist

        tf.distribute.MirroredStrategy = tfdist.strategies.MirroredStrategy


class _Combinations:
    """Lets the mirrored strategies of TensorFlow's generated tests be of two logical CPUs."""

    def __init__(self, *, with_tfdist: bool) -> None:
        import tensorflow as tf
        from tensorflow.python.distribute import combinations, strategy_combinations

        kind = _mirrored if with_tfdist else tf.distribute.MirroredStrategy
        for named in vars(strategy_combinations).values():
            if isinstance(named, combinations.NamedDistribution) and repr(named) in DISTRIBUTIONS:
                named.required_gpus = None
                named._distribution_fn = functools.partial(_on_cpus, kind, DISTRIBUTIONS[repr(named)])

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if _is_mirrored(item.name)]


def _on_cpus(kind: Any, devices: list[str]) -> Any:
    """Return a strategy; where a test before this one has begun TensorFlow's runtime anew, its CPUs are split again."""
    import tensorflow as tf
    from tensorflow.python.eager import context

    if len(tf.config.list_logical_devices("CPU")) < CPUS:
        context._reset_context()
        _split_cpu()
    return kind(devices)


def _split_cpu() -> None:
    import tensorflow as tf

    from tfdist.strategies import use_logical_cpus

    use_logical_cpus(CPUS)
    tf.config.list_logical_devices()  # a test that splits the CPU anew fails by itself, and not those after it


def _is_mirrored(name: str) -> bool:
    """Return whether a generated test is one of the strategies above, in a mode with eager execution."""
    parts = name.split("_")
    return any(distribution in parts for distribution in DISTRIBUTIONS) and "graph" not in parts


def _mirrored(devices: list[str]) -> Any:
    import tfdist

    return tfdist.strategies.MirroredStrategy(devices)


class _Log:
    """Writes each line at once: a process that is ended in the middle of a test has said in which."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found = ("", "")

    def _write(self, **line: str) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write(test=report.nodeid, outcome="uncollected", message=report.longreprtext.splitlines()[-1])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._found = ("passed", "")
        self._write(test=nodeid, outcome="begun", message="")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self._found[0] != "failed":
            crash = getattr(report.longrepr, "reprcrash", None)
            self._found = ("failed", crash.message if crash else report.longreprtext)
        elif report.skipped and self._found[0] == "passed":
            self._found = ("skipped", "")

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome, message = self._found
        self._write(test=nodeid, outcome=outcome, message=message)
