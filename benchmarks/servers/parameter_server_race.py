"""Parameter servers with one slow worker, and with a large table in parts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import slow_workers
from benchmarks.servers.table_lookups import TableLookups, TableResult
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, option, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import ConfigError
from tfdist.planner import machine
from tfdist.planner.plot_style import caption, figure_of, plain
from tfdist.validation import counted, parse_integer

__all__ = ["ParameterServerBench", "ParameterServerReport", "command", "rate"]

_NAMES = {"lookups": "lookups, predict", "sgd": "training, SGD", "adagrad": "training, Adagrad"}
_COLOURS = {"synchronous": "#9a9a9a", "bounded": "#e08a1e", "asynchronous": "#1f6fb4"}
_WIDTH = 0.26


@dataclass(frozen=True, kw_only=True)
class ParameterServerBench(Suite):
    """Measure parameter servers: the cost of a slow worker, and a large table in parts.

    Stragglers: Keras `fit` trains a small convolutional model on two parameter servers. One of several workers is
    slow. Three modes take turns over the same workers:

    \b
    synchronous    max_staleness=0: each batch is cut for all workers, and waits for the slow one
    bounded        max_staleness=workers + 1: a batch for each worker; one that is too far ahead waits
    asynchronous   max_staleness=None: a batch for each worker, without waiting

    The slow worker is stopped and resumed every 30 ms. A worker's step has --batch-size examples in each mode, so the
    synchronous mode makes fewer and larger updates. "Against synchronous" compares examples per second of the same
    round. Whether stale gradients train as well is not measured here.

    Lookups: a table of --rows by --dim in two parts, two workers, batches of 8192 ids, uniform or by a power law. The
    tables have the rows per second of `predict` and of `fit` with SGD and Adagrad, and the memory of the servers,
    which is 4 GB with the defaults.
    """

    workers: str = option("1,2,3", "Numbers of workers, each a measurement.", metavar="N,N")
    slow_factor: float = option(3.0, "How many times slower one of several workers is.")
    rounds: int = option(7, "Measurements of everything.")
    steps: int = option(15, "Per worker, in the mean, and measurement.")
    batch_size: int = option(1024, "Examples in a worker's step.")
    rows: int = option(10_000_000, "Rows of the table.", minimum=2)
    dim: int = option(16, "Float32 numbers in a row.")
    no_lookups: bool = option(False, "Leave the table out.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(set(self.counts)) < len(self.counts):
            raise ConfigError(f"workers is {self.workers!r}; name some numbers, each once, such as 1,2,3.")

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(parse_integer("workers", one, minimum=1, hint="Such as 1,2,3.") for one in self.workers.split(","))

    def run(self, told: Told = untold) -> "ParameterServerReport":
        with machine.observed() as about:
            crowds = [self._crowd(workers, told) for workers in self.counts]
            table = None
            if not self.no_lookups:
                lookups = TableLookups(rows=self.rows, dim=self.dim, rounds=self.rounds, steps=self.steps)
                table = lookups.run(lambda text: told(f"table: {text}"))
        return ParameterServerReport(setup=self, crowds=crowds, table=table, machine=about)

    def _crowd(self, workers: int, told: Told) -> slow_workers.Crowd:
        return slow_workers.measured(
            workers,
            slow_factor=self.slow_factor,
            rounds=self.rounds,
            steps=self.steps,
            batch_size=self.batch_size,
            told=lambda text: told(f"{workers} workers: {text}"),
        )


@dataclass(frozen=True, kw_only=True)
class ParameterServerReport(Report):
    """All measurements."""

    setup: ParameterServerBench
    crowds: Sequence[slow_workers.Crowd]  # one for each number of workers
    table: TableResult | None  # the measurements of a large table; None if they were left out

    def derived(self) -> dict[str, Any]:
        results = [
            {
                "workers": crowd.workers,
                "mode": mode,
                "examples_per_second": crowd.examples_per_second(mode),
                "steps_per_second": crowd.steps_per_second(mode),
                "speed": crowd.speed(mode),
                "staleness": {
                    "median": crowd.distribution(mode).quantile(0.5),
                    "mean": crowd.distribution(mode).mean,
                    "max": crowd.distribution(mode).largest,
                },
            }
            for crowd in self.crowds
            for mode in crowd.seconds
        ]
        rates = [
            {
                "work": arm.work,
                "draw": arm.draw,
                "rows_per_second": arm.rows_per_second,
                "steps_per_second": arm.steps_per_second,
            }
            for arm in (self.table.arms if self.table else ())
        ]
        return {"results": results, "table_results": rates}

    def shown(self) -> Iterator[Table | str]:
        yield Table(
            ("workers", "mode", "examples per second", "updates per second", "against synchronous", "staleness"),
            [
                [
                    *(str(crowd.workers), mode),
                    rate(crowd.examples_per_second(mode)),
                    rate(crowd.steps_per_second(mode)),
                    "-" if mode == "synchronous" else str(crowd.speed(mode)),
                    f"median {crowd.distribution(mode).quantile(0.5)}, largest {crowd.distribution(mode).largest}",
                ]
                for crowd in self.crowds
                for mode in crowd.seconds
            ],
        )
        setup = self.setup
        slowed = [
            f"with {one.workers} workers one was {one.slow_down:.2f} times slower by itself "
            f"({setup.slow_factor:g} were asked for)"
            for one in self.crowds
            if one.slow_down is not None
        ]
        yield (
            f"{setup.batch_size} examples in a worker's step, {slow_workers.SERVERS} servers; {setup.rounds} rounds of "
            f"{setup.steps} steps per worker; median [lower-upper quartile]; "
            f"{'; '.join(slowed) or 'no worker was slow'}."
        )
        if self.table is not None:
            yield from _table(self.table)
        yield self.ran_on()

    def draw(self, path: Path) -> None:
        figure = figure_of(8, 5)
        _bars(figure.add_subplot(), self.crowds)
        figure.suptitle(f"Parameter servers\n{caption(self.machine)}", fontsize=10, color="#555555")
        figure.savefig(path, format="png")


def _bars(axes: Any, crowds: Sequence[slow_workers.Crowd]) -> None:
    for place, mode in enumerate(slow_workers.MODES):
        found = [crowd.examples_per_second(mode) for crowd in crowds]
        middles = [group + (place - 1) * _WIDTH for group in range(len(found))]
        medians = [one.median for one in found]
        error = [[one.median - one.lower for one in found], [one.upper - one.median for one in found]]
        colour = _COLOURS[mode]
        axes.bar(middles, medians, _WIDTH * 0.92, yerr=error, color=colour, ecolor="#222222", capsize=3, label=mode)
        for middle, one in zip(middles, found, strict=True):
            axes.annotate(
                f"{one.median:,.0f}",
                (middle, one.upper),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                fontsize=9,
            )
    axes.set_xticks(range(len(crowds)), [_label(crowd.workers, crowd.slow_down) for crowd in crowds])
    axes.margins(y=0.12)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("examples per second, all workers")
    axes.set_title("fit with one slow worker", loc="left", fontweight="bold")
    axes.legend(frameon=False, loc="upper left")
    plain(axes)
    axes.grid(visible=False, axis="x")


def _label(workers: int, slow_down: float | None) -> str:
    bound = f"bound {slow_workers.bounds(workers)['bounded']}"
    if slow_down is None:
        return f"{counted(workers, 'worker')}\nnone slow, {bound}"
    return f"{workers} workers\none {slow_down:.1f} times slower, {bound}"


def rate(found: Quartiles) -> str:
    """Return a rate as text for a table, with its significant digits.

    Example:
        >>> rate(Quartiles(median=12345.6, lower=1.0, upper=20000.0))
        '12,346 [1-20,000]'
    """
    digits = 0 if found.median >= 100 else 1
    return f"{found.median:,.{digits}f} [{found.lower:,.{digits}f}-{found.upper:,.{digits}f}]"


def _table(found: TableResult) -> Iterator[Table | str]:
    setup = found.setup
    yield Table(
        ("table", "ids", "rows per second", "batches per second"),
        [[_NAMES[arm.work], arm.draw, rate(arm.rows_per_second), rate(arm.steps_per_second)] for arm in found.arms],
    )
    yield (
        f"{setup.rows:,} rows of {setup.dim} float32, {setup.bytes / 1e6:,.1f} MB in {setup.servers} parts, made in "
        f"{found.create_seconds:.1f} s; {setup.workers} workers, batches of {setup.batch_size} ids."
    )
    rows = []
    for moment, servers in found.memory.items():
        rows.append([f"{moment}: variables placed", *(_megabytes(server.placed) for server in servers)])
        rows.append([f"{moment}: resident", *(_megabytes(server.resident) for server in servers)])
    rows.append(["the most it ever had", *(_megabytes(server.most) for server in found.memory["after training"])])
    yield Table(("memory of a server's process, MB", *(f"server {one}" for one in range(setup.servers))), rows)
    yield "Variables placed are those of the models; Adagrad keeps as much again for each, resident in the end."


def _megabytes(number: int) -> str:
    return f"{number / 1e6:,.1f}"


command = suite_command(
    "parameter-server",
    ParameterServerBench,
    examples={
        "python -m benchmarks parameter-server --plot servers.png": "about 8 minutes on 2 cores",
        "python -m benchmarks parameter-server --workers 1,2 --no-lookups": "the modes alone",
        "python -m benchmarks parameter-server --rows 1000000 --dim 64": "another table",
    },
    page="benchmarks-parameter-servers",
    has_picture=True,
)
