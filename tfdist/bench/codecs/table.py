"""Reports on codecs as text."""

from collections.abc import Iterator, Mapping, Sequence

from tfdist.bench.codecs.benchmark import Report
from tfdist.bench.codecs.choice import HOROVOD, NONE
from tfdist.bench.codecs.race import RaceReport
from tfdist.bench.workers.links import Link
from tfdist.measurement.ratio import Quartiles, quartiles

__all__ = ["race_lines", "step_lines"]

_STEPS = "{:<18}  {:>12}  {:>12}  {:>12}  {:>6}  {:>8}  {:>8}  {:>26}  {:>18}  {:>18}  {:>7}"
_RACE = "{:<18}  {:>24}  {:>19}  {:>8}  {:>18}  {:>18}"


def step_lines(report: Report) -> Iterator[str]:
    """Yield the lines of a report on steps."""
    setup = report.setup
    yield _STEPS.format(
        "codec",
        "sent",
        "payload",
        "formula",
        "payl./",
        "encode",
        "decode",
        "step",
        f"vs {NONE}",
        f"vs {HOROVOD}",
        "error",
    )
    yield _STEPS.format(
        "", "(bytes)", "(bytes)", "(bytes)", "form.", "(ms)", "(ms)", "(ms)", "(times)", "(times)", ""
    ).rstrip()
    for row in report.rows:
        yield _STEPS.format(
            row.name,
            _number(row.sent, ",.0f"),
            _number(row.payload, ",.0f"),
            _number(row.wire_bytes, ",.0f"),
            _number(row.payload_over_formula, ".3f"),
            _milliseconds(row.encode),
            _milliseconds(row.decode),
            _three([1e3 * seconds for seconds in row.seconds]),
            _or_dash(report.speed(row, NONE)),
            _or_dash(report.speed(row, HOROVOD)),
            _number(row.error, ".3g"),
        )
    yield ""
    yield (
        f"{setup.model}, {setup.workers} workers {_where(setup.link)}, global batch {setup.global_batch_size}; "
        f"{setup.rounds} rounds of {setup.steps} steps; median [lower-upper quartile]."
    )
    for name, (best, times) in report.regrets().items():
        yield f"{name}: {times} times the step of {best}, the best fixed choice."
    yield from _about(report.left_out, report.machine)


def race_lines(report: RaceReport) -> Iterator[str]:
    """Yield the lines of a report on trainings."""
    setup = report.setup
    yield _RACE.format("codec", f"to {setup.target:.1%}", "epochs", "in the end", f"vs {NONE}", f"vs {HOROVOD}")
    yield _RACE.format("", "(s of training)", "", "", "(times)", "(times)").rstrip()
    for name in report.curves:
        seconds, epochs = report.seconds_to_target(name), report.epochs_to_target(name)
        yield _RACE.format(
            name,
            "not reached" if seconds is None else str(seconds),
            _or_dash(epochs),
            f"{report.final_accuracy(name).median:.1%}",
            _or_dash(report.speed(name, NONE)),
            _or_dash(report.speed(name, HOROVOD)),
        )
    yield ""
    yield (
        f"digits, perceptron of 2.2 M parameters, SGD with momentum; {setup.workers} workers {_where(setup.link)}, "
        f"global batch {setup.global_batch_size}, {setup.steps} steps, looked at every {setup.steps_per_check}; "
        f"{setup.rounds} seeds; median [lower-upper quartile]."
    )
    yield from _about(report.left_out, report.machine)


def _about(left_out: Mapping[str, str], machine: Mapping[str, str]) -> Iterator[str]:
    for name, why in left_out.items():
        yield f"{name} left out: {why}"
    yield (
        f"{machine['processor']}, {machine['cores']} cores; TensorFlow {machine['tensorflow']}, Horovod "
        f"{machine['horovod']}; {machine['time']}; load {machine['load average']} before, "
        f"{machine['load average at the end']} after."
    )


def _where(link: Link | None) -> str:
    return f"behind links of {link}" if link else "on this machine"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:.1f}"


def _three(values: Sequence[float]) -> str:
    found = quartiles(values)
    return f"{found.median:.1f} [{found.lower:.1f}-{found.upper:.1f}]"


def _or_dash(value: Quartiles | None) -> str:
    return "-" if value is None else str(value)
