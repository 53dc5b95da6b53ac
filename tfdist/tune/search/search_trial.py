"""The side of a trial: what the search has asked for, the values of parameters, and reports, as files of the job."""

import atexit
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfdist import cluster, validation
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.tune.search.search_history import Declare, Report
from tfdist.tune.search.search_space import (
    Choice,
    Parameter,
    Range,
    Value,
    checked,
    draw_one,
    from_json,
    to_json,
)
from tfdist.variables import SEARCH_TRIAL

# in the folder of a trial
REPORTS, DECLARED, BACKUP, ERROR, LOG = "reports.jsonl", "declared.jsonl", "backup", "error.json", "output.log"


@dataclass(frozen=True, kw_only=True)
class TrialRequest:
    """A search's request to the process of a trial.

    Attributes:
        folder: the folder of the trial.
        until: the number of epochs after which it ends, and is perhaps resumed.
        last: the number of epochs of a trial that is never paused again.
        metric: the name of the metric in logs and reports.
        values: the values that the search has chosen, or that the script has drawn before.
        draws: whether the script draws the values that are not in `values`; else its defaults are taken.
    """

    folder: str
    trial: int
    until: int
    last: int
    metric: str
    seed: int
    values: Mapping[str, Value]
    draws: bool

    def to_environment(self) -> dict[str, str]:
        return {SEARCH_TRIAL.name: json.dumps(asdict(self))}

    @property
    def ends_for_good(self) -> bool:
        return self.until >= self.last


def requested(environ: Mapping[str, str] | None = None) -> TrialRequest | None:
    """Return the request for which this process was started; None outside of a search."""
    said = SEARCH_TRIAL.read(os.environ if environ is None else environ)
    return TrialRequest(**json.loads(said)) if said else None


class HyperParameters:
    """The values of a trial, declared where they are used, with the names and arguments of Keras Tuner.

    Outside of a search every parameter has its default.

    Args:
        request: of the search; `parameters` passes it.

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
        """Return a float.

        Args:
            name: of the parameter.
            min_value: the smallest value.
            max_value: the largest value, included.
            step: the distance of values, or their ratio if they are logarithmic.
            sampling: "linear" or "log".
            default: outside of a search; ``min_value`` by default.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: an empty range, or a value of the search's that is no number.
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
        """Return an integer.

        Args:
            name: of the parameter.
            min_value: the smallest value.
            max_value: the largest value, included.
            step: the distance of values, or their ratio if they are logarithmic.
            sampling: "linear" or "log".
            default: outside of a search; ``min_value`` by default.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: an empty range, or a value of the search's that is no number.
        """
        default = min_value if default is None else default
        return int(self._declare(name, _range(name, min_value, max_value, step, sampling, is_integer=True), default))

    def Choice(  # noqa: N802
        self, name: str, values: list[Any], ordered: bool | None = None, default: Any = None
    ) -> Any:
        """Return one of some values.

        Args:
            name: of the parameter.
            values: numbers, texts or bools.
            ordered: taken for Keras Tuner's sake; neighbours in the list count as near.
            default: outside of a search; the first by default.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: there are no values, one occurs twice, or one is of another type.
        """
        parameter = checked(name, Choice(values=tuple(values)))
        return self._declare(name, parameter, values[0] if default is None else default)

    def Boolean(self, name: str, default: bool = False) -> bool:  # noqa: N802
        """Return True or False.

        Args:
            name: of the parameter.
            default: outside of a search.
        Returns:
            The value of this trial.
        """
        return bool(self._declare(name, Choice(values=(False, True)), default))

    def get(self, name: str) -> Value:
        """Return the value of a parameter that was declared before.

        Args:
            name: of the parameter.
        Returns:
            The value of this trial.
        Raises:
            ConfigError: there is none of this name.
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
    """Return the values of this trial; each is declared where it is asked for.

    Without ``--space`` the declarations are the space of the search. With it, names that it lacks have their defaults.

    Returns:
        An object with `Float`, `Int`, `Choice`, `Boolean`, `get` and `values`.

    Example:
        >>> parameters().Int("layers", 1, 4, default=2)
        2
    """
    return HyperParameters(requested())


def report(metrics: Mapping[str, float] | float, step: int) -> None:
    """Report to the search from a training loop of your own; `callbacks` does it for `fit`.

    It does nothing outside of a search. Where the trial pauses it ends the process, with code 0: save what the loop
    needs in `folder` before. A trial that has saved nothing begins anew when it is resumed; that costs time alone.

    Args:
        metrics: the metric of the search by its name, beside others; or its value alone.
        step: how many epochs, or other units, are behind it; 1 or more, and more at each report.
    Raises:
        ConfigError: the metric is missing.
        ConfigTypeError: it is no number.
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
    if step >= request.until and not request.ends_for_good:
        sys.exit(0)


def folder() -> Path | None:
    """Return the folder of this trial, for what the script saves; None outside of a search.

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
    except (TypeError, ValueError) as error:
        raise ConfigTypeError(
            f"{request.metric!r} is {validation.shown(metrics[request.metric])}; a metric must be a number.",
            name=request.metric,
        ) from error
    atexit.unregister(_flush_summaries)
    atexit.register(_flush_summaries)
    if cluster.from_environment().is_chief:
        _append(Path(request.folder, REPORTS), {"step": step, "value": value})


def _flush_summaries() -> None:
    """Do what the teardown of TensorFlow would do, which a forked trial leaves out."""
    if "tensorflow" in sys.modules:
        from tfdist.compat import initialized

        initialized.flush_summaries()


def _append(path: Path, content: Mapping[str, Any]) -> None:
    """Append a line at once, so that a reader never sees half of one that another writer has interrupted."""
    line = json.dumps(content).encode() + b"\n"
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


@dataclass
class ReportFiles:
    """Reads what a trial has written since the last look."""

    trial: int
    folder: Path
    _read: dict[str, int]

    @classmethod
    def of(cls, trial: int, folder: Path) -> "ReportFiles":
        return cls(trial, folder, {DECLARED: 0, REPORTS: 0})

    def news(self) -> Iterator[Declare | Report]:
        for line in self._lines(DECLARED):
            yield Declare(self.trial, line["name"], from_json(line["parameter"]), line["value"])
        for line in self._lines(REPORTS):
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
        yield from map(json.loads, whole.splitlines())
