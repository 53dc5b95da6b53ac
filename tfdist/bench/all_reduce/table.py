"""An all-reduce report as text, in the columns of nccl-tests, and two more for the peers."""

from collections.abc import Iterator

from tfdist.bench.all_reduce.benchmark import PEERS, Report, Row, Setup
from tfdist.measurement.ratio import Quartiles

__all__ = ["footer", "header", "lines", "where"]

_COLUMNS = "{:>13}  {:>9}  {:>5}  {:>5}  {:<24}  {:>25}  {:>6}  {:>6}  {:>6}  {:>17}  {:>17}  {:>17}"


def header(setup: Setup) -> list[str]:
    """Return the lines above the table."""
    return [
        f"{setup.workers} workers {where(setup)}; {setup.rounds} rounds in which the engines take turns; time from "
        "the last worker's tensors to its sums;",
        "median [lower-upper quartile]; the last columns are the peer's time over the engine's in the same round.",
        "",
        _COLUMNS.format(
            "size", "count", "type", "redop", "engine", "time", "algbw", "busbw", "#wrong", *(f"vs {p}" for p in PEERS)
        ).rstrip(),
        _COLUMNS.format("(B)", "(elements)", "", "", "", "(us)", "(GB/s)", "(GB/s)", "", *("(times)" for _ in PEERS)),
    ]


def where(setup: Setup) -> str:
    """Return where the workers are.

    Example:
        >>> from tfdist.bench.workers.links import Link
        >>> where(Setup(engines=["ring"], workers=2, sizes=[4096], gradients=None, rounds=1, link=Link(rate="1gbit")))
        'on this machine, each behind a link of 1gbit'
    """
    return "on this machine" + (f", each behind a link of {setup.link}" if setup.link else "")


def lines(row: Row, setup: Setup) -> Iterator[str]:
    """Yield a line for each engine of a row.

    Example:
        >>> setup = Setup(engines=["ring"], workers=2, sizes=[4096], gradients=None, rounds=1)
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
            *(_or_dash(row.speed(engine, peer)) for peer in PEERS),
        )


def footer(report: Report) -> list[str]:
    """Return the lines below the table: what was summed in one go, what was left out, and the machine."""
    told = [
        f"{row.name}: the gradients of the model, {len(row.elements)} tensors, {row.bytes / 1e6:.1f} MB in one step."
        for row in report.rows
        if len(row.elements) > 1
    ]
    for reason in dict.fromkeys(report.left_out.values()):
        names = [engine for engine, why in report.left_out.items() if why == reason]
        told.append(f"{', '.join(names)} left out: {reason}")
    about = report.machine
    told.append(
        f"{about['processor']}, {about['cores']} cores; TensorFlow {about['tensorflow']}, Horovod {about['horovod']}, "
        f"Python {about['python']}; {about['time']}; load {about['load average']} before, "
        f"{about['load average at the end']} after."
    )
    return ["", *told]


def _or_dash(value: Quartiles | None) -> str:
    return "-" if value is None else str(value)
