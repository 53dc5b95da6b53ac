"""What a feature is told about where it runs."""

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Context:
    """Where a feature runs: on one device, or as one worker of a strategy.

    Attributes:
        strategy: the strategy, or None on one device.
        workers: number of worker processes of the column that is compared.
        worker: index of this one.
        replicas: number of replicas of the column over all workers.
        directory: an empty directory that all workers of the cell share.

    On one device ``workers`` and ``replicas`` are 1, unless the feature's reference depends on the layout: then they
    are the column's, while ``strategy`` is None.
    """

    strategy: Any
    workers: int
    worker: int
    replicas: int
    directory: Path

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Return the strategy's scope; on one device, a context that does nothing."""
        return contextlib.nullcontext() if self.strategy is None else self.strategy.scope()

    @property
    def is_chief(self) -> bool:
        """Whether this is the worker whose files count."""
        return self.worker == 0

    def local_values(self, variable: Any) -> list[Any]:
        """Return a variable's value on each replica of this process, as arrays."""
        import numpy as np

        value = getattr(variable, "value", variable)
        value = value() if callable(value) else value
        if self.strategy is None:
            return [np.asarray(value)]
        return [np.asarray(replica) for replica in self.strategy.experimental_local_results(value)]
