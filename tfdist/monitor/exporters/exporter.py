"""The `Exporter` protocol, and the exporters by name: ``tensorboard:DIR``, ``prometheus:PORT``, ``mlflow:URI``.

An exporter runs in its own thread, outside of the job: it may block and raise without any effect on workers.
"""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.monitor.verdict.step_parts import Timeline
from tfdist.monitor.watch.snapshot import Snapshot
from tfdist.validation import shown


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of a curve, which stands for several steps of training."""

    step: int  # the last one's number, over restarts as far as a backup says
    time: float  # of its end, seconds since 1970
    steps: Timeline  # their parts, losses and hidden communication, on all workers


@dataclass(frozen=True, kw_only=True)
class Update:
    """News of a job: its current snapshot, and the points and events since the last update."""

    snapshot: Snapshot
    points: tuple[Point, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    is_last: bool = False

    @property
    def alerts(self) -> tuple[Mapping[str, Any], ...]:
        """The alerts among the events: ``{"event": "alert", "alert": name, "worker": number or None, "text": ...}``."""
        return tuple(event for event in self.events if event.get("event") == "alert")


_News = TypeVar("_News", contravariant=True)


class Exporter(Protocol[_News]):
    """An exporter: it passes on updates of one job, or other news of one kind."""

    def write(self, update: _News, /) -> None:
        """Write an update; the first comes when the job is first seen, and the last is marked as the last.

        Raises:
            Exception: any error; it is reported once, and later updates are still tried.
        """

    def close(self) -> None:
        """Release resources such as files and ports."""


@dataclass(frozen=True)
class Kind:
    """A kind of exporter; its class `title` is in the module ``NAME_exporter``."""

    title: str
    where: str  # what follows the colon
    package: str  # the module that it imports, or ""
    extra: str  # of tfdist that installs it
    default: str = ""  # file or folder where nothing follows the colon


KINDS = {
    "tensorboard": Kind("TensorBoard", "a folder", "tensorboard", "monitor", "tensorboard"),
    "prometheus": Kind("Prometheus", "a port", "prometheus_client", "monitor"),
    "html": Kind("HTML", "a file", "", "", "tfdist.html"),
    "mlflow": Kind("MLflow", "a tracking URI", "mlflow", "mlflow"),
}


@dataclass(frozen=True)
class Target:
    """A requested exporter: its kind and its destination; "" is the default destination."""

    name: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.name}:{self.where}" if self.where else self.name


def parse(text: str, *, option: str = "exporters") -> Target:
    if not isinstance(text, str):
        raise ConfigError(
            f"{option} has {shown(text)}; it must be a text such as 'tensorboard:DIR'.",
            name=option,
            received=shown(text),
        )
    name, _, where = text.partition(":")
    if name not in KINDS:
        known = ", ".join(f"{one} (behind a colon {kind.where})" for one, kind in KINDS.items())
        raise ConfigError(
            f"{option} has {shown(text)}; there are {known}. Name one of them.", name=option, received=text
        )
    if name == "prometheus":
        address(where, option=option)
    return Target(name, where)


def parse_all(texts: Sequence[str], *, option: str = "exporters") -> tuple[Target, ...]:
    """Return the exporters that texts name, after checking that their packages are installed."""
    if isinstance(texts, str):
        raise ConfigError(
            f"{option} is {shown(texts)}; it must be a list, such as [{texts!r}].", name=option, received=texts
        )
    targets = tuple(parse(text, option=option) for text in texts)
    for target in targets:
        if targets.count(target) > 1:
            raise ConfigError(
                f"{option} has {shown(str(target))} twice; name it once.", name=option, received=str(target)
            )
        kind = KINDS[target.name]
        if kind.package and importlib.util.find_spec(kind.package) is None:
            raise MissingDependencyError(
                f"{option} has {shown(str(target))}, which needs the package {kind.package}. Install it: "
                f"pip install 'tfdist[{kind.extra}]'",
                name=kind.package,
            )
    return targets


def address(where: str, *, option: str = "exporters") -> tuple[str, int]:
    """Parse the address on which metrics are served; the loopback interface by default."""
    host, _, port = where.rpartition(":")
    port = port or "9400"
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(
            f"{option} has {shown(f'prometheus:{where}')}; the port must be a number from 1 to 65535.",
            name=option,
            received=f"prometheus:{where}",
        )
    return host.strip("[]") or "127.0.0.1", int(port)


def make(target: Target) -> Exporter[Update]:
    module = importlib.import_module(f"tfdist.monitor.exporters.{target.name}_exporter")
    made: Exporter[Update] = getattr(module, KINDS[target.name].title)(target.where)
    return made
