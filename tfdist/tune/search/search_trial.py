"""The process of a trial: the request of the search, the values of parameters, and reports, as files of the job."""

import atexit
import errno
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdist import cluster, validation
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.tune.search.search_history import Declare, Report
from tfdist.tune.search.search_space import Choice, Parameter, Range, Value, checked, draw_one, from_json, to_json
from tfdist.variables import SEARCH_TRIAL

# in the folder of a trial
REPORTS, DECLARED, BACKUP, ERROR, LOG = "reports.jsonl", "declared.jsonl", "backup", "error.json", "output.log"


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A search's request to the process of a trial."""

    folder: str  # the folder of the trial
    trial: int
    until: int  # the number of epochs after which it ends, and is perhaps resumed
    last: int  # the number of epochs of a trial that is never paused again
    metric: str  # the name of the metric in logs and reports
    seed: int
    values: Mapping[str, Value]  # the values that the search has chosen, or that the script has drawn before
    draws: bool  # whether the script draws the values that are not in `values`; else its defaults are taken
    orders: str = ""  # the path of the pipe on which the process waits while the trial is paused; empty: it ends there

    def to_environment(self) -> dict[str, str]:
        return {SEARCH_TRIAL.name: json.dumps(asdict(self))}

    @property
    def ends_for_good(self) -> bool:
        return self.until >= self.last


def requested() -> TrialRequest | None:
    """Return the request for which this process was started; None outside of a search."""
    said = SEARCH_TRIAL.read(os.environ)
    return TrialRequest(**json.loads(said)) if said else None


class HyperParameters:
    """The values of a trial, declared where they are used, with the names and arguments of Keras Tuner.

    Outside of a search every parameter has its default.

    Args:
        request: the request of the search, which `parameters` passes; None outside of a search.

    Example:
        >>> hp = parameters()
        >>> hp.Float("lr", 1e-4, 1e-1, sampling="log", default=1e-3), hp.Choice("units", [32, 64]), hp.values["units"]
        (0.001, 32, 32)
    """

    def __init__(self, request: TrialRequest | None) -> None:
        self._request = request
        self.values: dict[str, Value] = {}

    def Float(  # noqa: N802 - Keras Tuner's name
        self,
        name: str,
        min_value: float,
        max_value: float,
        step: float | None = None,
        sampling: str | None = "linear",
        default: float | None = None,
    ) -> float:
        """Declare a float parameter, and return its value.

        Args:
            name: the name of the parameter.
            min_value: the smallest value.
            max_value: the largest value, included.
            step: the distance between values, or their ratio if they are logarithmic.
            sampling: the distribution of values, "linear" or "log".
            default: the value outside of a search; ``min_value`` by default.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: the range is empty, or the value of the search is not a number.
        """
        default = min_value if default is None else default
        return float(self._declare(name, _range(name, min_value, max_value, step, sampling, is_integer=False), default))

    def Int(  # noqa: N802
        self,
        name: str,
        min_value: int,
        max_value: int,
        step: int | None = None,
        sampling: str | None = "linear",
        default: int | None = None,
    ) -> int:
        """Declare an integer parameter, and return its value.

        Args:
            name: the name of the parameter.
            min_value: the smallest value.
            max_value: the largest value, included.
            step: the distance between values, or their ratio if they are logarithmic.
            sampling: the distribution of values, "linear" or "log".
            default: the value outside of a search; ``min_value`` by default.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: the range is empty, or the value of the search is not a number.
        """
        default = min_value if default is None else default
        return int(self._declare(name, _range(name, min_value, max_value, step, sampling, is_integer=True), default))

    def Choice(  # noqa: N802
        self, name: str, values: list[Any], ordered: bool | None = None, default: Any = None
    ) -> Any:
        """Declare a choice from some values, and return the chosen one.

        Args:
            name: the name of the parameter.
            values: the values to choose from: numbers, texts or bools.
            ordered: ignored, and accepted for compatibility with Keras Tuner; neighbours in the list always count as
                near.
            default: the value outside of a search; the first value by default.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: there are no values, one occurs twice, or one is of another type.
        """
        parameter = checked(name, Choice(values=tuple(values)))
        return self._declare(name, parameter, values[0] if default is None else default)

    def Boolean(self, name: str, default: bool = False) -> bool:  # noqa: N802
        """Declare a boolean parameter, and return its value.

        Args:
            name: the name of the parameter.
            default: the value outside of a search.
        Returns:
            The value of this trial.
        """
        return bool(self._declare(name, Choice(values=(False, True)), default))

    def get(self, name: str) -> Value:
        """Return the value of a parameter that was declared before.

        Args:
            name: the name of the parameter.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: there is no parameter with this name.
        """
        if name not in self.values:
            hint = validation.nearest(name, self.values)
            raise ConfigError(f"no parameter {name!r} was declared before get().{hint}", name=name)
        return self.values[name]

    def _declare(self, name: str, parameter: Parameter, default: Any) -> Any:
        validation.text("the name of a parameter", name)
        request = self._request
        if name in self.values:
            return self.values[name]
        if request is None:
            value = default
        elif name in request.values:
            value = request.values[name]
        elif request.draws:
            value = draw_one(name, parameter, seed=request.seed, trial=request.trial)
        else:
            value = default
        if isinstance(parameter, Range) and (isinstance(value, bool | str) or not hasattr(value, "__float__")):
            raise ConfigError(
                f"the search gives {name!r} the value {value!r}, and the script needs a number. Change --space.",
                name=name,
                received=value,
            )
        self.values[name] = value
        if request is not None and cluster.from_environment().is_chief:
            line = {"name": name, "parameter": to_json(parameter), "value": value}
            _append(Path(request.folder, DECLARED), line)
        return value


def _range(
    name: str, low: float, high: float, step: float | None, sampling: str | None, *, is_integer: bool
) -> Parameter:
    is_log = validation.one_of("sampling", sampling or "linear", ("linear", "log")) == "log"
    return checked(name, Range(low=low, high=high, step=step, is_integer=is_integer, is_log=is_log))


def parameters() -> HyperParameters:
    """Return the parameters of this trial, each of which is declared where its value is requested.

    Without ``--space``, the declarations are the space of the search. With it, names that it lacks have their defaults.

    Returns:
        An object with `Float`, `Int`, `Choice`, `Boolean`, `get` and `values`.

    Example:
        >>> parameters().Int("layers", 1, 4, default=2)
        2
    """
    return HyperParameters(requested())


def report(metrics: Mapping[str, float] | float, step: int) -> None:
    """Report to the search from a custom training loop; `callbacks` does this for `fit`.

    It does nothing outside of a search. If the trial pauses here, it waits until the trial is resumed, or ends the
    process with code 0, so save the state of the loop in `folder` first. A trial that resumes in a new process without
    saved state begins anew, which costs only time.

    Args:
        metrics: the metric of the search by its name, perhaps with other metrics; or its value alone.
        step: the number of finished epochs, or other units; at least 1, and larger at each report.
    Raises:
        ConfigError: the metric is missing.
        ConfigTypeError: the metric is not a number.
        SystemExit: the trial pauses here.

    Example:
        >>> for epoch in range(3):
        ...     report({"loss": 1 / (epoch + 1)}, step=epoch + 1)
    """
    validation.integer("step", step, minimum=1)
    request = requested()
    if request is None:
        return
    write_report(request, metrics if isinstance(metrics, Mapping) else {request.metric: metrics}, step)
    if step >= request.until and not request.ends_for_good and continued(request) is None:
        sys.exit(0)


def continued(request: TrialRequest) -> TrialRequest | None:
    """Say that the trial is paused, and wait for an order; return the new request, or None if the process is to end."""
    if not request.orders or request.ends_for_good:
        return None
    try:
        with open(request.orders, "rb") as orders:
            _append(Path(request.folder, REPORTS), {"waits": request.orders})
            until = int(orders.readline() or 0)
    except OSError:
        return None  # the search has removed the pipe
    if not until:
        return None
    found = replace(request, until=until)
    os.environ.update(found.to_environment())
    return found


def folder() -> Path | None:
    """Return the folder of this trial, for files that the script saves; None outside of a search.

    Example:
        >>> folder() is None
        True
    """
    request = requested()
    return None if request is None else Path(request.folder)


def write_report(request: TrialRequest, metrics: Mapping[str, Any], step: int) -> None:
    if request.metric not in metrics:
        hint = validation.nearest(request.metric, metrics)
        raise ConfigError(
            f"the search compares {request.metric!r}, and the metrics are {', '.join(metrics) or 'none'}.{hint} Pass "
            "one of them with --metric; those that begin with val_ need validation_data.",
            name="--metric",
            received=request.metric,
        )
    try:
        value = float(metrics[request.metric])
    except (TypeError, ValueError, OverflowError) as error:
        raise ConfigTypeError(
            f"{request.metric!r} is {validation.shown(metrics[request.metric])}; a metric must be a number.",
            name=request.metric,
        ) from error
    atexit.unregister(_flush_summaries)
    atexit.register(_flush_summaries)
    if cluster.from_environment().is_chief:
        _append(Path(request.folder, REPORTS), {"step": step, "value": value})


def _flush_summaries() -> None:
    """Flush summaries, as TensorFlow's teardown would do; a forked trial skips the teardown."""
    if "tensorflow" in sys.modules:
        from tfdist.compat import initialized

        initialized.flush_summaries()


def _append(path: Path, content: Mapping[str, Any]) -> None:
    """Append a line in one write, so that a reader never sees lines of two writers mixed; one that was cut is ended."""
    line = json.dumps(content).encode() + b"\n"
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(descriptor).st_size
        is_cut = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        line = b"\n" * is_cut + line
        if os.write(descriptor, line) < len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(descriptor)


@dataclass
class ReportFiles:
    """A reader of the lines that a trial has written since the last look."""

    trial: int
    folder: Path
    orders: str = ""
    waits: bool = False  # whether the process of these orders is paused and waits for the next one
    _read: dict[str, int] = field(default_factory=lambda: {DECLARED: 0, REPORTS: 0})

    def news(self) -> Iterator[Declare | Report]:
        for line in self._lines(DECLARED):
            yield Declare(self.trial, line["name"], from_json(line["parameter"]), line["value"])
        for line in self._lines(REPORTS):
            if "waits" in line:
                self.waits = self.waits or line["waits"] == self.orders != ""
            else:
                yield Report(self.trial, int(line["step"]), float(line["value"]))

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        try:
            with open(self.folder / name, "rb") as file:  # opened, a disk of the network has what others have written
                file.seek(self._read[name])
                content = file.read()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        self._read[name] += len(whole)
        for line in whole.splitlines():
            try:
                found = json.loads(line)
            except ValueError:  # a full disk has cut it, and its writer has failed
                continue
            yield found
