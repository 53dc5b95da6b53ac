"""The all-reduce benchmark, which compares backends by the conventions of nccl-tests."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.bench.all_reduce import limits, reduced_message
from tfdist.bench.suite import Quartiles, Report, Suite, Told, in_turns, option, quartiles, ratio, turn, untold
from tfdist.bench.workers import lanes
from tfdist.bench.workers.slow_network import EmulatedLink, Network, network
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.native.engine import ALGORITHMS
from tfdist.planner import machine
from tfdist.planner.plot_style import caption, figure_of, plain
from tfdist.validation import shown_bytes
from tfdist.variables import ALL_REDUCE_ALGORITHM, BENCH_MEMORY, BENCH_RANKS

# Each has worker processes of its own: two multi-worker strategies cannot share a process, and the ring starts Horovod
# with settings that are good for it and not for others.
ENGINES = ("tensorflow", "multi-worker", "horovod", "ring", "native", "open-mpi", "tcp", "bare", "memcpy")
LIMITS = ("tcp", "bare", "memcpy")
_OPEN_MPI, _BARE = "open-mpi", "bare"
_ONE_HOST = (_OPEN_MPI, _BARE)  # not between hosts, and so not behind links
PEERS = ("tensorflow", "horovod", _OPEN_MPI)
_MOST_WARM_UP_CALLS = 5
_COLUMNS = "{:>13}  {:>9}  {:>5}  {:>5}  {:<24}  {:>25}  {:>6}  {:>6}  {:>6}  {:>17}  {:>17}  {:>17}"
_WORKER = "tfdist.bench.all_reduce.reducing_workers"
_MODULES = {**dict.fromkeys(LIMITS, "tfdist.bench.all_reduce.limits"), _OPEN_MPI: "tfdist.bench.all_reduce.open_mpi"}


def engines(*, linked: bool) -> tuple[str, ...]:
    """Return the backends between workers of one host, or between workers behind links."""
    return tuple(engine for engine in ENGINES if not (linked and engine in _ONE_HOST))


@dataclass(frozen=True, kw_only=True)
class AllReduceBench(Suite):
    """All-reduces of single tensors and of a model's gradients, by every backend."""

    engines: Sequence[str]  # names from `ENGINES`
    sizes: Sequence[int]  # bytes of one float32 tensor, each a row
    # a model from `tfdist.bench.suite.MODELS`, whose gradients are one more row; None for none
    gradients: str | None = None
    link: EmulatedLink | None = None  # what connects the workers; None: they share this host
    # from `tfdist.native.engine.ALGORITHMS`: each is one more engine, the native one by this algorithm. Only over a
    # link: workers of one host need none
    algorithms: Sequence[str] = ()
    leave_out: bool = True  # whether to continue without an engine that is not installed
    workers: int = option(2, "Workers per backend.", minimum=2)
    rounds: int = option(7, "Measurements of each backend.")

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [engine for engine in self.engines if engine not in ENGINES]
        if unknown or not self.engines:
            raise ConfigError(f"engines is {list(self.engines)}; name some of {', '.join(ENGINES)}.")
        here = [engine for engine in self.engines if engine in _ONE_HOST]
        if here and self.link is not None:
            raise ConfigError(
                f"engines is {list(self.engines)} and link is {self.link}; {' and '.join(here)} cannot use a link, "
                f"because its processes share this host. Omit {' and '.join(here)}, or the link."
            )
        if self.algorithms and self.link is None:
            raise ConfigError(
                f"algorithms is {list(self.algorithms)} without a link; they apply only between hosts. Name a link, "
                "such as 1gbit, or no algorithm."
            )

    def arms(self) -> list[str]:
        """Return the backends, and ``native:ALGORITHM`` for each algorithm."""
        return [*self.engines, *(f"native:{algorithm}" for algorithm in self.algorithms)]

    def run(self, told: Told = untold, on_row: Callable[["Row"], None] = lambda row: None) -> "AllReduceReport":
        rows = []
        with machine.observed() as about, contextlib.ExitStack() as stack:
            joined = stack.enter_context(network(self.link, self.workers)) if self.link else None
            found = {engine: _lane(engine, self.workers, joined, stack) for engine in self.arms()}
            call = stack.enter_context(lanes.running(found))
            left_out = self._start(call)
            running = [engine for engine in found if engine not in left_out]
            messages = [(shown_bytes(size), [size // 4]) for size in self.sizes if running]
            if self.gradients is not None and running:
                of_model = call(running[0], f"{_WORKER}:gradients", model=self.gradients)[0]
                messages.append((self.gradients, of_model))
            for name, elements in messages:
                rows.append(self._row(running, call, name, elements, told))
                on_row(rows[-1])
        return AllReduceReport(setup=self, rows=rows, left_out=left_out, machine=about)

    def _start(self, call: lanes.Call) -> dict[str, str]:
        left_out = {}
        for engine in self.arms():
            try:
                call(engine, f"{_module(engine)}:start", engine=engine)
            except MissingDependencyError as error:
                if not self.leave_out:
                    raise
                left_out[engine] = str(error)
        return left_out

    def _row(self, running: Sequence[str], call: lanes.Call, name: str, elements: Sequence[int], told: Told) -> "Row":
        calls = reduced_message.calls(4 * sum(elements))
        warm_up, wrong = min(calls + 1, _MOST_WARM_UP_CALLS), {}
        for engine in running:
            told(f"{name}: {engine}, {turn(0, self.rounds)}")
            target = f"{_module(engine)}:prepare"
            wrong[engine] = sum(call(engine, target, engine=engine, elements=elements, warm_up=warm_up))

        def measure(engine: str, number: int) -> float:
            return reduced_message.seconds(call(engine, f"{_module(engine)}:measure", engine=engine, calls=calls))

        seconds = in_turns(running, measure, count=self.rounds, told=told, subject=f"{name}: ")
        return Row(name=name, elements=elements, calls=calls, seconds=seconds, wrong=wrong)


@dataclass(frozen=True, kw_only=True)
class Row:
    """The results of one message, reduced by every backend."""

    name: str  # the size, or whose gradients
    elements: Sequence[int]  # of each float32 tensor in it
    calls: int  # all-reduces in one measurement
    # engine -> seconds per all-reduce, one per round; see `reduced_message.seconds`
    seconds: Mapping[str, Sequence[float]]
    wrong: Mapping[str, int]  # engine -> wrong elements of a result, over all workers

    @property
    def bytes(self) -> int:
        return 4 * sum(self.elements)

    def time(self, engine: str) -> Quartiles:
        return quartiles(self.seconds[engine])

    def algorithm_bandwidth(self, engine: str) -> Quartiles:
        """Return S / t, in bytes per second."""
        return quartiles([self.bytes / seconds for seconds in self.seconds[engine]])

    def bus_bandwidth(self, engine: str, workers: int) -> Quartiles:
        return quartiles(
            [reduced_message.bus_bandwidth(self.bytes, seconds, workers) for seconds in self.seconds[engine]]
        )

    def speed(self, engine: str, peer: str) -> Quartiles | None:
        """Return the peer's time over the backend's in the same round; None without the peer."""
        if peer not in self.seconds or engine == peer:
            return None
        return ratio(self.seconds[peer], self.seconds[engine])


@dataclass(frozen=True, kw_only=True)
class AllReduceReport(Report):
    setup: AllReduceBench
    rows: Sequence[Row]
    left_out: Mapping[str, str]

    def derived(self) -> dict[str, Any]:
        return {
            "results": [
                {
                    "name": row.name,
                    "engine": engine,
                    "bytes": row.bytes,
                    "seconds": row.time(engine),
                    "algorithm_bandwidth": row.algorithm_bandwidth(engine),
                    "bus_bandwidth": row.bus_bandwidth(engine, self.setup.workers),
                    "wrong": row.wrong[engine],
                    "speed": {peer: q for peer in PEERS if (q := row.speed(engine, peer)) is not None},
                }
                for row in self.rows
                for engine in row.seconds
            ]
        }

    def shown(self) -> Iterator[str]:
        yield from header(self.setup)
        for row in self.rows:
            yield from lines(row, self.setup)
        yield from self.footer()

    def footer(self) -> Iterator[str]:
        yield ""
        for row in self.rows:
            if len(row.elements) > 1:
                size = f"{len(row.elements)} tensors, {row.bytes / 1e6:.1f} MB in one step."
                yield f"{row.name}: the gradients of the model, {size}"
        for reason in dict.fromkeys(self.left_out.values()):
            names = [engine for engine, why in self.left_out.items() if why == reason]
            yield f"{', '.join(names)} left out: {reason}"
        yield self.ran_on()

    def draw(self, path: Path) -> None:
        draw(self, path)


def header(setup: AllReduceBench) -> list[str]:
    link = f", each behind a link of {setup.link}" if setup.link else ""
    return [
        f"{setup.workers} workers on this machine{link}; {setup.rounds} rounds in which the engines take turns; "
        "time from the last worker's tensors to its sums;",
        "median [lower-upper quartile]; the last columns are the peer's time over the engine's in the same round.",
        "",
        _COLUMNS.format(
            "size", "count", "type", "redop", "engine", "time", "algbw", "busbw", "#wrong", *(f"vs {p}" for p in PEERS)
        ).rstrip(),
        _COLUMNS.format("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", *("(times)" for _ in PEERS)),
    ]


def lines(row: Row, setup: AllReduceBench) -> Iterator[str]:
    """Yield a line for each backend of a row.

    Example:
        >>> setup = AllReduceBench(engines=["ring"], sizes=[4096])
        >>> row = Row(name="4K", elements=[1024], calls=1, seconds={"ring": [0.002]}, wrong={"ring": 0})
        >>> next(lines(row, setup)).split()
        ['4K', '1024', 'float', 'sum', 'ring', '2000', '[2000-2000]', '0.002', '0.002', '0', '-', '-', '-']
    """
    for engine in row.seconds:
        time = row.time(engine)
        microseconds = f"{1e6 * time.median:.0f} [{1e6 * time.lower:.0f}-{1e6 * time.upper:.0f}]"
        yield _COLUMNS.format(
            row.name,
            sum(row.elements),
            "float",
            "sum",
            engine,
            microseconds,
            f"{row.algorithm_bandwidth(engine).median / 1e9:.3f}",
            f"{row.bus_bandwidth(engine, setup.workers).median / 1e9:.3f}",
            row.wrong[engine],
            *(str(row.speed(engine, peer) or "-") for peer in PEERS),
        )


def _lane(engine: str, workers: int, joined: Network | None, stack: contextlib.ExitStack) -> lanes.Lane:
    if engine == _OPEN_MPI:  # one worker asks as many ranks
        return lanes.Lane(engine, workers=1, environment={BENCH_RANKS.name: str(workers)})
    name, _, algorithm = engine.partition(":")
    environment = {ALL_REDUCE_ALGORITHM.name: algorithm} if algorithm else {}
    if engine == _BARE:
        environment = {BENCH_MEMORY.name: stack.enter_context(limits.shared_memory())}
    return lanes.Lane(name, workers=workers, environment=environment, network=joined)


def _module(engine: str) -> str:
    return _MODULES.get(engine, _WORKER)


# peers in greys, tfdist in colours, limits dotted
_STYLES = {
    "tensorflow": ("#9a9a9a", "--"),
    "horovod": ("#4d4d4d", "--"),
    "open-mpi": ("#4d4d4d", "-."),
    "multi-worker": ("#e08a1e", "-"),
    "ring": ("#1f6fb4", "-"),
    "native": ("#2a9d62", "-"),
    "tcp": ("#7a9a3a", ":"),
    "bare": ("#b0764a", ":"),
    "memcpy": ("#b04a4a", ":"),
}

_SHADES = ("#8fd0ab", "#5fb98a", "#1f7d4d", "#155f39", "#0b3d24")  # of native, by algorithm


def draw(report: "AllReduceReport", path: Path) -> None:
    """Draw bus bandwidth over size, with bands between quartiles; if gradients were reduced, bars with their times."""
    sizes = [row for row in report.rows if len(row.elements) == 1]
    models = [row for row in report.rows if len(row.elements) > 1]
    panels = [panel for panel, rows in ((_bandwidth, sizes), (_times, models)) if rows]
    figure = figure_of(6 * len(panels), 5)
    for index, panel in enumerate(panels):
        panel(figure.add_subplot(1, len(panels), index + 1), report, sizes if panel is _bandwidth else models)
    behind = f", links of {report.setup.link}" if report.setup.link else ""
    figure.suptitle(
        f"All-reduce, {report.setup.workers} workers{behind}; median and quartiles of {report.setup.rounds} rounds\n"
        f"{caption(report.machine)}",
        fontsize=10.5,
        color="#555555",
    )
    figure.savefig(path, format="png")


def _style(engine: str) -> tuple[str, str]:
    name, _, algorithm = engine.partition(":")
    colour, line = _STYLES[name]
    return (_SHADES[ALGORITHMS.index(algorithm)], "-.") if algorithm else (colour, line)


def _bandwidth(axes: Any, report: "AllReduceReport", rows: "list[Row]") -> None:
    sizes = [row.bytes for row in rows]
    for engine in rows[0].seconds:
        colour, line = _style(engine)
        bandwidths = [row.bus_bandwidth(engine, report.setup.workers) for row in rows]
        axes.plot(sizes, [b.median / 1e9 for b in bandwidths], line, color=colour, marker="o", ms=4, label=engine)
        lower, upper = [b.lower / 1e9 for b in bandwidths], [b.upper / 1e9 for b in bandwidths]
        axes.fill_between(sizes, lower, upper, color=colour, alpha=0.2, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [shown_bytes(size) for size in sizes])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("bytes of the tensor, float32")
    axes.set_ylabel("bus bandwidth (GB/s)")
    axes.set_title("One tensor", loc="left", fontweight="bold")
    axes.legend(frameon=False)
    plain(axes)


def _times(axes: Any, report: "AllReduceReport", rows: "list[Row]") -> None:
    bars = [(row, engine) for row in reversed(rows) for engine in reversed(list(row.seconds))]
    for position, (row, engine) in enumerate(bars):
        time = row.time(engine)
        error = [[1e3 * (time.median - time.lower)], [1e3 * (time.upper - time.median)]]
        colour, _ = _style(engine)
        axes.barh(position, 1e3 * time.median, xerr=error, color=colour, height=0.6, ecolor="#222222", capsize=4)
        axes.annotate(
            f"{1e3 * time.median:.0f} ms",
            (1e3 * time.upper, position),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize=10,
        )
    axes.set_yticks(range(len(bars)), [engine for _, engine in bars])
    axes.margins(x=0.2)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms for all tensors of a step")
    (row,) = rows
    axes.set_title(
        f"Gradients of {row.name}: {len(row.elements)} tensors, {row.bytes / 1e6:.0f} MB", loc="left", fontweight="bold"
    )
    plain(axes)
