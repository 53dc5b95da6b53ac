"""The context of a feature: where it runs."""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfdist.errors import DeadlineError

_BARRIER_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where a feature runs: on one device, or as one worker of a strategy.

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
        """Wait until every worker of the cell is here: before one reads what another writes."""
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
        """Whether this is the worker whose files count."""
        return self.worker == 0

    def local_values(self, variable: Any) -> list[Any]:
        """Return a variable's value on each replica of this process, as arrays; of what is sharded, the whole."""
        import numpy as np

        if getattr(self.strategy, "sharding", None) is not None:
            return [np.asarray(self.strategy.whole_value(variable))]

        value = getattr(variable, "value", variable)
        value = value() if callable(value) else value
        if self.strategy is None:
            return [np.asarray(value)]
        return [np.asarray(replica) for replica in self.strategy.experimental_local_results(value)]
