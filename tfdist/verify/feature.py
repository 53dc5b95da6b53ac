"""The rows of the matrix: features of Keras, each a function that trains a small model and returns its numbers.

A feature is a function in a file below `tfdist.verify.features`, marked by `feature`. It runs unchanged on one device
and under every strategy; the matrix compares the results. Features import no TensorFlow at module level
(`keras` and `tf` here load when a feature runs), so that listing them costs nothing.

Example:
    >>> from tfdist.verify.feature import features
    >>> features()["even"].group
    'batches'
"""

import contextlib
import fnmatch
import importlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError, DeadlineError
from tfdist.validation import nearest
from tfdist.verify.column import Column

__all__ = ["Feature", "feature", "features", "registered", "select"]

TOLERANCE = 1e-5
DEADLINE_SECONDS = 60.0

_PACKAGE = "tfdist.verify.features"

_BARRIER_SECONDS = 30.0

Outcome = Mapping[str, Any]


class _Lazy:
    """A module that is imported when an attribute is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


if TYPE_CHECKING:
    import keras as keras
    import tensorflow

    tf = tensorflow
else:
    keras = _Lazy("keras")
    tf = _Lazy("tensorflow")


@dataclass(frozen=True, kw_only=True)
class Context:
    """The place where a feature runs: one device, or one worker of a strategy.

    On one device ``strategy`` and ``make_strategy`` (which makes another like it) are None, and ``workers`` and
    ``replicas`` are 1, unless the feature's reference depends on the layout: then they are the column's. All workers of
    a cell share ``directory``.
    """

    strategy: Any
    workers: int
    worker: int
    replicas: int
    directory: Path
    make_strategy: Callable[[], Any] | None = None

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the strategy's scope; on one device, a context that does nothing."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    def another(self) -> "Context":
        """Return this context with a strategy of its own; on one device, this context."""
        return self if self.make_strategy is None else replace(self, strategy=self.make_strategy())

    def barrier(self, name: str) -> None:
        """Wait until every worker of the cell has called this, before one reads a file that another writes."""
        present = self.directory.with_name(f"{self.directory.name}.{name}")
        if self.strategy is None or self.workers == 1:
            return
        present.mkdir(exist_ok=True)
        (present / str(self.worker)).touch()
        deadline = time.monotonic() + _BARRIER_SECONDS
        while (here := len(list(present.iterdir()))) < self.workers:
            if time.monotonic() > deadline:
                raise DeadlineError(f"{here} of {self.workers} workers came to {name!r} in {_BARRIER_SECONDS:.0f} s.")
            time.sleep(0.01)

    @property
    def is_chief(self) -> bool:
        """Whether this worker is the one whose files count."""
        return self.worker == 0

    def local_values(self, variable: Any) -> list[Any]:
        """Return a variable's value on each replica of this process, as arrays; for a sharded one, the whole."""
        import numpy as np

        if getattr(self.strategy, "sharding", None) is not None:
            return [np.asarray(self.strategy.whole_value(variable))]

        value = getattr(variable, "value", variable)
        value = value() if callable(value) else value
        if self.strategy is None:
            return [np.asarray(value)]
        return [np.asarray(replica) for replica in self.strategy.experimental_local_results(value)]


Function = Callable[[Context], Outcome]


@dataclass(frozen=True, kw_only=True)
class Feature:
    """One row of the matrix.

    Attributes:
        name: the function's name.
        module: the module in which it is registered.
        summary: a description in one line.
        function: a function that takes a `Context` and returns a flat dict of arrays, numbers, bools or texts.
        reference: the function to compare with; by default the same function on one device.
        per_layout: whether the reference depends on the number of workers and replicas, which are in the context.
        tolerance: the largest difference that is green, relative to ``max(1, |reference|)``.
        min_workers: the number of worker processes below which a column leaves the feature out.
        may_refuse: whether a clear refusal (`ConfigError`, `UnsupportedError` of tfdist) is as good as equal numbers.
        deadline_seconds: the time in seconds after which the feature counts as a hang.
    """

    name: str
    module: str
    summary: str
    function: Function
    reference: Function
    per_layout: bool
    tolerance: float
    min_workers: int
    may_refuse: bool
    deadline_seconds: float

    @property
    def group(self) -> str:
        """The name of its file, such as ``"batches"``."""
        return self.module.rpartition(".")[2].removesuffix("_features")

    def applies(self, column: Column) -> bool:
        """Return whether the feature makes sense under a column."""
        return column.workers >= self.min_workers


_features: dict[str, Feature] = {}


def feature(
    *,
    reference: Function | None = None,
    per_layout: bool = False,
    tolerance: float = TOLERANCE,
    min_workers: int = 1,
    may_refuse: bool = False,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Callable[[Function], Function]:
    """Register the decorated function as a row of the matrix; its docstring is the summary.

    Args:
        reference: the function to compare with; None: the same function on one device.
        per_layout: whether the reference depends on the number of workers and replicas.
        tolerance: the largest difference that is green, relative to ``max(1, |reference|)``.
        min_workers: the number of worker processes below which a column leaves the feature out.
        may_refuse: whether a clear refusal is as good as equal numbers.
        deadline_seconds: the time in seconds after which the feature counts as a hang.

    Raises:
        ConfigError: another feature has the name, or the docstring is missing.

    Example:
        >>> @feature(tolerance=1e-3)                    # doctest: +SKIP
        ... def even(ctx):
        ...     "Batches that divide evenly."
    """

    def register(function: Function) -> Function:
        name, summary = function.__name__, (function.__doc__ or "").strip().partition("\n")[0].rstrip(".")
        if not summary:
            raise ConfigError(
                f"feature {name!r} has no docstring; its first line is what the table says about it.", name=name
            )
        if name in _features:
            raise ConfigError(
                f"two features are named {name!r}, one of them in {_features[name].group}. Rename one.", name=name
            )
        _features[name] = Feature(
            name=name,
            module=function.__module__,
            summary=summary,
            function=function,
            reference=reference or function,
            per_layout=per_layout,
            tolerance=tolerance,
            min_workers=min_workers,
            may_refuse=may_refuse,
            deadline_seconds=deadline_seconds,
        )
        return function

    return register


def registered(name: str) -> Feature:
    """Return the feature of this name among the files that have been imported.

    Raises:
        ConfigError: there is no such feature.

    Example:
        >>> _ = features()
        >>> registered("even").group
        'batches'
    """
    try:
        return _features[name]
    except KeyError:
        raise ConfigError(
            f"no feature is named {name!r}; `tfdist verify --list` shows all.", name="feature", received=name
        ) from None


def features() -> dict[str, Feature]:
    """Return every feature of the matrix by name, in the order of files and of functions in them; loads no TensorFlow.

    Example:
        >>> next(iter(features()))
        'even'
    """
    package = importlib.import_module(_PACKAGE)
    modules = [f"{_PACKAGE}.{name}" for name in package.ORDER]
    for module in modules:
        importlib.import_module(module)
    known = [entry for entry in _features.values() if entry.module in modules]
    return {entry.name: entry for entry in sorted(known, key=lambda entry: modules.index(entry.module))}


def select(patterns: Iterable[str], available: Mapping[str, Feature] | None = None) -> tuple[Feature, ...]:
    """Return the features that names, groups or globs select, in the matrix's order; all of them without patterns.

    Args:
        patterns: names, groups or globs, such as ``"even"``, ``"batches"`` (a file) or ``"*norm*"``.
        available: the features to choose from, by default all.
    Raises:
        ConfigError: a pattern selects none.

    Example:
        >>> [entry.name for entry in select(["even", "clip*"])]
        ['even', 'clipnorm', 'clipvalue']
    """
    patterns = tuple(patterns)
    every = tuple((features() if available is None else available).values())
    for pattern in patterns:
        if not any(_matches(entry, pattern) for entry in every):
            meant = nearest(pattern, [entry.name for entry in every])
            raise ConfigError(
                f"no feature is named {pattern!r}.{meant} Give a name, a glob or a group "
                f"({', '.join(dict.fromkeys(e.group for e in every))}). `tfdist verify --list` shows all.",
                name="--feature",
                received=pattern,
            )
    return tuple(e for e in every if not patterns or any(_matches(e, pattern) for pattern in patterns))


def _matches(entry: Feature, pattern: str) -> bool:
    return entry.group == pattern or fnmatch.fnmatchcase(entry.name, pattern)
