"""The measurement of a job's first steps, after which the job ends, for `tfdist tune`. Loads no TensorFlow.

Every worker counts the same batches of training, so all workers end before the same step, with code 0.
"""

import atexit
import contextlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError
from tfdist.monitor.observer import End, StepObserver
from tfdist.monitor.phases import Kind
from tfdist.storage.files import write_whole
from tfdist.variables import STOPWATCH, WORKER_INDEX

_BLOCKS = 5


@dataclass(frozen=True, kw_only=True)
class Request:
    """The value of TFDIST_STOPWATCH, as JSON: a folder for measurements, and the numbers of skipped and timed steps."""

    folder: str
    warm_up: int
    steps: int

    def to_environment(self) -> dict[str, str]:
        return {STOPWATCH.name: json.dumps(asdict(self))}


@dataclass(kw_only=True)
class Measurement:
    steps: int = 0  # ended steps of training, with those of the warm-up
    examples: int = 0  # the most of a step over all replicas; 0 if unknown
    replicas: int = 1  # over all workers
    # pairs of examples and seconds of successive steps, with the time between steps of an epoch
    blocks: list[tuple[int, float]] = field(default_factory=list)
    memory: int = 0  # largest resident set of the process, bytes
    device_memory: int = 0  # most GPU memory of the process, bytes; 0 without any
    is_complete: bool = False


class Stopwatch(StepObserver):
    """An observer that measures a worker's steps of training, and ends the process after the last measured one."""

    def __init__(
        self,
        request: Request,
        worker: int,
        *,
        settle: Callable[[], Any] | None = None,
        device_memory: Callable[[], int] | None = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._request = request
        self._path = Path(request.folder, f"worker-{worker}.json")
        self._settle = settle or _settle
        self._device_memory = device_memory or _device_memory
        self._now = now
        self._since: int | None = None  # nothing is measured now
        self._elapsed, self._examples = 0, 0
        self._process = os.getpid()
        self.found = Measurement()
        atexit.register(self._write)

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ, **options: Any) -> "Stopwatch | None":
        asked = STOPWATCH.read(environ)
        if not asked:
            return None
        try:
            request = Request(**json.loads(asked))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"{STOPWATCH.name} is {asked!r}; `tfdist tune` sets it, for its own scripts. Unset it.",
                name=STOPWATCH.name,
                received=asked,
            ) from error
        return cls(request, WORKER_INDEX.read(environ), **options)

    def before_step(self, step: int) -> End | None:
        return End(0, saves=False) if self.found.is_complete else None

    def on_begin(self, step: int, kind: Kind, now: int) -> None:
        if self._since is None and kind is Kind.TRAIN and self.found.steps >= self._request.warm_up:
            self._since = now

    def on_epoch_end(self) -> None:
        """Pause the measurement until the next step of training."""
        if self._since is not None:
            self._settle()
            self._elapsed += self._now() - self._since
            self._since = None

    def on_trained(self, step: int, examples: int, replicas: int) -> None:
        found, wanted = self.found, self._request
        if found.is_complete:
            return
        found.steps += 1
        found.examples, found.replicas = max(found.examples, examples), replicas
        measured = found.steps - wanted.warm_up
        if measured == 0:
            self._settle()
        if measured <= 0:
            return
        self._examples += examples
        if measured % max(1, wanted.steps // _BLOCKS) == 0 or measured == wanted.steps:
            self.on_epoch_end()
            found.blocks.append((self._examples, self._elapsed / 1e9))
            self._elapsed, self._examples = 0, 0
            self._since = self._now()
        if measured >= wanted.steps:
            found.is_complete = True
            self._write()

    def _write(self) -> None:
        atexit.unregister(self._write)
        if os.getpid() != self._process:
            return
        found = self.found
        found.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        found.device_memory = self._device_memory()
        with contextlib.suppress(OSError):  # the process that asked for it has gone
            write_whole(self._path, json.dumps(asdict(found)))


def _settle() -> None:
    """Wait until all devices are idle; a process without TensorFlow does not use them."""
    if "tensorflow" in sys.modules:
        import tensorflow as tf

        tf.test.experimental.sync_devices()


def _device_memory() -> int:
    if "tensorflow" not in sys.modules:
        return 0
    import tensorflow as tf

    names = [device.name for device in tf.config.list_logical_devices("GPU")]
    return sum(int(tf.config.experimental.get_memory_info(name)["peak"]) for name in names)


def read(folder: str | os.PathLike[str]) -> list[Measurement]:
    """Return the workers' measurements, in order; workers without a measurement are left out."""
    files = sorted(Path(folder).glob("worker-*.json"), key=lambda path: int(path.stem.partition("-")[2]))
    found = [Measurement(**json.loads(path.read_text(encoding="utf-8"))) for path in files]
    for one in found:
        one.blocks = [(int(examples), float(seconds)) for examples, seconds in one.blocks]
    return found
