"""Parameter servers: workers of which one is slow, and a large table in parts."""

import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.bench.parameter_server import lookups, stragglers
from tfdist.measurement import machine

__all__ = ["Report", "run"]


@dataclass(frozen=True, kw_only=True)
class Report:
    """Everything that was measured, and the machine.

    Attributes:
        setup: what was measured with slow workers.
        crowds: one for each number of workers.
        table: what was measured on a large table; None where that was left out.
        machine: processor, cores, versions, time and load at the start, and the load at the end.
    """

    setup: stragglers.Setup
    crowds: Sequence[stragglers.Crowd]
    table: lookups.Result | None
    machine: dict[str, str]

    def to_json(self) -> str:
        """Return the report as JSON, throughputs, ratios and staleness included."""
        results = [
            {
                "workers": crowd.workers,
                "mode": mode,
                "examples_per_second": asdict(crowd.examples_per_second(mode)),
                "steps_per_second": asdict(crowd.steps_per_second(mode)),
                "speed": asdict(crowd.speed(mode)),
                "staleness": _staleness(crowd, mode),
            }
            for crowd in self.crowds
            for mode in crowd.seconds
        ]
        rates = [
            {
                "work": arm.work,
                "draw": arm.draw,
                "rows_per_second": asdict(arm.rows_per_second),
                "steps_per_second": asdict(arm.steps_per_second),
            }
            for arm in (self.table.arms if self.table else ())
        ]
        return json.dumps({**asdict(self), "results": results, "table_results": rates}, indent=2)


def run(
    setup: stragglers.Setup,
    table: lookups.Setup | None,
    *,
    on_turn: Callable[[str], None] = lambda what: None,
) -> Report:
    """Measure with each number of workers, then on the table, and return the report.

    Args:
        setup: what to measure with slow workers.
        table: what to measure on a large table, or None.
        on_turn: told what is measured next.
    Raises:
        TfdistError: a chief failed, or a worker was lost; the message has its traceback.

    Example:
        >>> setup = stragglers.Setup(workers=[1, 2], slow_factor=3.0, rounds=3, steps=10, batch_size=256)
        >>> run(setup, None).crowds[1].slow_down                      # doctest: +SKIP
        2.9
    """
    about = machine.describe()
    crowds = []
    for workers in setup.workers:
        told = functools.partial(_tell, on_turn, f"{workers} workers" if workers > 1 else "1 worker")
        crowds.append(stragglers.measure(setup, workers, on_turn=told))
    found = lookups.measure(table, on_turn=functools.partial(_tell, on_turn, "table")) if table is not None else None
    about["load average at the end"] = machine.describe()["load average"]
    return Report(setup=setup, crowds=crowds, table=found, machine=about)


def _tell(on_turn: Callable[[str], None], subject: str, what: str) -> None:
    on_turn(f"{subject}: {what}")


def _staleness(crowd: stragglers.Crowd, mode: str) -> dict[str, Any]:
    distribution = crowd.distribution(mode)
    return {"median": distribution.quantile(0.5), "mean": distribution.mean, "max": distribution.largest}
