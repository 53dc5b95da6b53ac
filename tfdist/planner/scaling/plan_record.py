"""The record of planning: measurements of this machine, and predictions beside measured steps. Loads no TensorFlow.

It is one JSON file in the cache. `tfdist plan calibrate` writes its measurements, `tfdist plan` its prediction for a
command, and a monitored run of that command the measured step.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tfdist import cache
from tfdist.errors import ConfigError
from tfdist.planner.planner_link import Link
from tfdist.storage.files import write_whole

KIND = "record of planning"
VERSION = 1
FOLDER = "plan"
#: without measurements, a step is stated to be within this share of its prediction
UNKNOWN = 0.2
#: the least number of pairs from which an interval is made
FEWEST = 5
_MOST = 500  # pairs, and expectations, that are kept
_TAIL = 0.1
_LOCK_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The measurements of a machine."""

    link: Link | None = None  # the link between two processes, with the latency of a message
    flops: float  # operations per second on matrices
    memory_bytes_per_second: float  # the bytes per second that one processor copies
    disk_bytes_per_second: float  # the bytes per second that are written and synchronized
    noise: float  # the standard deviation of a step's time, relative to that time
    step_seconds: float  # the time of a compiled step that computes almost nothing
    codec_seconds: float  # the time of PowerSGD for a layer's gradients
    codec_seconds_per_byte: float  # the time of PowerSGD for each byte of the gradients
    machine: dict[str, str] = field(default_factory=dict)  # a description of the machine


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A pair of a predicted and a measured step."""

    key: str
    predicted: float
    measured: float
    time: str = ""


@dataclass(frozen=True, kw_only=True)
class Record:
    """The record of planning on this machine."""

    calibration: Calibration | None = None  # the last calibration; None if there is none
    expected: Mapping[str, float] = field(default_factory=dict)  # key of a command -> the predicted seconds of its step
    pairs: tuple[Pair, ...] = ()  # the pairs of predictions and measurements, in the order of measurement

    def calibrated(self, found: Calibration) -> "Record":
        return dataclasses.replace(self, calibration=found)

    def expecting(self, steps: Mapping[str, float]) -> "Record":
        kept = {**{key: value for key, value in self.expected.items() if key not in steps}, **steps}
        return dataclasses.replace(self, expected=dict(list(kept.items())[-_MOST:]))

    def measured(self, key: str, seconds: float, time: str) -> "Record":
        """Return the record with the measured step of a command, if it was predicted."""
        predicted = self.expected.get(key)
        if predicted is None or not seconds > 0:
            return self
        pair = Pair(key=key, predicted=predicted, measured=seconds, time=time)
        return dataclasses.replace(self, pairs=(*self.pairs, pair)[-_MOST:])

    def factors(self) -> tuple[float, float]:
        """Return the factors that turn a prediction into the lower and the upper end of its interval.

        With n pairs, the next one is between the k-th smallest and the k-th largest ratio with probability
        1 - 2 k / (n + 1), if it is like them; k is chosen for 80 %, or as near as few pairs allow.
        """
        ratios = sorted(one.measured / one.predicted for one in self.pairs if one.predicted > 0)
        if len(ratios) < FEWEST:
            return 1 - UNKNOWN, 1 + UNKNOWN
        place = max(math.floor(_TAIL * (len(ratios) + 1)), 1) - 1
        return ratios[place], ratios[-1 - place]

    def to_json(self) -> str:
        return json.dumps({"kind": KIND, "version": VERSION, **dataclasses.asdict(self)}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> "Record":
        """Return the record in a document; an empty one if the document has another version."""
        content = json.loads(text)
        if content.get("kind") != KIND or content.get("version") != VERSION:
            return cls()
        found = content["calibration"]
        if found is not None:
            link = found["link"]
            found = Calibration(**{**found, "link": None if link is None else Link(**link)})
        pairs = tuple(Pair(**one) for one in content["pairs"])
        return cls(calibration=found, expected=content["expected"], pairs=pairs)


def key_of(strategy: str, workers: int, words: Sequence[str]) -> str:
    """Return the key of a command: its strategy, number of workers, and script with arguments."""
    return json.dumps([strategy, workers, *words])


def path_of(environ: Mapping[str, str]) -> Path:
    return cache.folder(environ) / FOLDER / "record.json"


def read(path: Path) -> Record:
    """Return the record in a file; an empty one if there is none."""
    try:
        return Record.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Record()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"the record of planning {path} cannot be read ({error}). Remove it: tfdist cache clean {FOLDER}", path=path
        ) from error


def local_link(environ: Mapping[str, str]) -> Link | None:
    """Return the link between processes of this host, as it was calibrated; None if it was not."""
    found = read(path_of(environ)).calibration
    return found.link if found is not None and found.link is not None and found.link.is_local else None


def change(path: Path, changed: Callable[[Record], Record]) -> Record:
    """Change the record in a file; other processes wait meanwhile, and readers see the old or the new one whole."""
    root = path.parent.parent
    cache.make(root, (FOLDER, cache.WORK, "locks"))
    lock = root / "locks" / f"{FOLDER}.lock"
    with cache.locked(lock, timeout_seconds=_LOCK_SECONDS, on_wait=lambda holder: None):
        found = changed(read(path))
        write_whole(path, found.to_json())
    return found
