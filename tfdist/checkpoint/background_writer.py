"""Saving in the background: training hands over a state and continues."""

import dataclasses
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tfdist.checkpoint.checkpoint_manifest import Joint, Part, plain_state
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.checkpoint.safetensors_file import as_arrays
from tfdist.errors import ConfigError, DeadlineError
from tfdist.monitor import faults
from tfdist.waiting import LOOK_SECONDS

#: this process's last writer for each place
_last: "weakref.WeakValueDictionary[str, Writer]" = weakref.WeakValueDictionary()


class _Job(NamedTuple):
    """A request to save the state of a step."""

    step: int
    save: Callable[[], None]


class Writer:
    """A thread that saves; of the waiting states, only the newest is saved.

    A save that fails because of the disk (full, forbidden, broken) does not end training: each kind of failure is
    reported once, earlier checkpoints stay, and the next save is tried. Any other error is raised by the next call
    of this writer.

    Args:
        store: the store to save to.
        warn: a function called in the thread with a text: what failed, and what to do.
        on_written: a function called in the thread with the step of each complete save.

    Attributes:
        written: the step that was saved last, None before the first save.
        last_error: the error of the last save, None if it succeeded.
        failures: the number of failed saves.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     writer = Writer(Store(folder), warn=print)
        ...     writer.submit(1, {"x": np.zeros(3)}, {})
        ...     writer.close()
        ...     writer.written, Store(folder).peek()[0]
        (1, 1)
    """

    def __init__(
        self, store: Store, *, warn: Callable[[str], None], on_written: Callable[[int], None] = lambda step: None
    ) -> None:
        self._store = store
        self._warn = warn
        self._on_written = on_written
        # a lock that its thread may take again: a signal handler may submit while the same thread submits
        self._changed = threading.Condition(threading.RLock())
        self._thread: threading.Thread | None = None
        self._next: _Job | None = None
        self._is_saving = self._is_closed = False
        self._broken: BaseException | None = None
        self._said: set[int | None] = set()
        self.written: int | None = None
        self.last_error: OSError | None = None
        self.failures = 0
        _last[store.url] = self

    @property
    def is_busy(self) -> bool:
        """Whether a state is being saved, or waits for it."""
        with self._changed:
            return self._next is not None or self._is_saving

    def submit(
        self,
        step: int,
        arrays: Mapping[str, Any],
        state: Mapping[str, Any],
        *,
        parts: Sequence[Part] = (),
        joint: Joint | None = None,
    ) -> None:
        """Submit a checkpoint to be saved, in place of one that still waits; return at once.

        Args:
            step: the number of steps done.
            arrays: arrays as for `Store.save`; not copied, so they must not be changed any more.
            state: JSON as for `Store.save`; copied.
            parts: parts as for `Store.save`; not copied. If other processes write some of them, all must submit the
                same saves, and no waiting save may be replaced.
            joint: the joint save, as for `Store.save`.
        Raises:
            ConfigError: something cannot be saved, or the writer is closed.
        """
        given, plain = as_arrays(arrays), plain_state(state)
        own = [_checked(part) for part in parts]
        self._submit(_Job(step, lambda: self._store.save(step, given, plain, parts=own, joint=joint)))

    def submit_part(self, step: int, part: Part, joint: Joint) -> None:
        """Submit this worker's part of a checkpoint that another process submits; return at once.

        Args:
            step: the number of steps done.
            part: this worker's contribution; not copied.
            joint: the identity of the save, the same in both processes.
        Raises:
            ConfigError: something cannot be saved, or the writer is closed.
        """
        own = _checked(part)
        self._submit(_Job(step, lambda: self._store.save_part(step, own, joint)))

    def _submit(self, job: _Job) -> None:
        with self._changed:
            self._raise_broken()
            if self._is_closed:
                raise ConfigError(
                    "the writer is closed; it takes nothing more. Make another one.", path=self._store.url
                )
            self._next = job
            if self._thread is None:
                # a process that ends does not wait for it: a save is whole or did not happen
                self._thread = threading.Thread(target=self._run, name="tfdist-checkpoint", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Wait until all submitted states are saved or have failed.

        Args:
            timeout_seconds: the longest wait, in seconds; None: until the disk answers.
        Raises:
            DeadlineError: the wait took longer; the save continues.
        """
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        with self._changed:
            while self._next is not None or self._is_saving:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlineError(
                        f"Saving into {self._store.url} has not ended after {timeout_seconds:g} seconds. Look whether "
                        "the disk or the store answers.",
                        path=self._store.url,
                    )
                # a wait without a limit may miss Ctrl-C
                self._changed.wait(LOOK_SECONDS if left is None else min(left, LOOK_SECONDS))
            self._raise_broken()

    def close(self, timeout_seconds: float | None = None) -> None:
        """Wait as `wait` does, and end the thread; a second call does nothing."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self.wait(timeout_seconds)
        if self._thread is not None:
            self._thread.join()

    def _raise_broken(self) -> None:
        if self._broken is not None:
            broken, self._broken = self._broken, None
            raise broken

    def _run(self) -> None:
        while (job := self._taken()) is not None:
            try:
                self._save(job)
            except BaseException as error:  # noqa: BLE001 - it is not seen here; the next call raises it
                self._broken = error
            finally:
                del job  # the arrays may be large
                with self._changed:
                    self._is_saving = False
                    self._changed.notify_all()

    def _taken(self) -> _Job | None:
        with self._changed:
            while self._next is None and not self._is_closed:
                self._changed.wait()
            job, self._next = self._next, None
            self._is_saving = job is not None
            return job

    def _save(self, job: _Job) -> None:
        step = job.step
        try:
            job.save()
        except OSError as error:
            self.failures += 1
            self.last_error = error
            if error.errno not in self._said:
                self._said.add(error.errno)
                left = "earlier ones stay" if self.written is None else f"that of step {self.written} stays"
                self._warn(
                    f"The checkpoint of step {step} could not be saved ({left}); training continues, and the next save "
                    f"is tried. {error}"
                )
                if self._store.durable:
                    faults.warned(f"{step} could not be saved")
            return
        self.last_error = None
        self.written = step
        self._said.clear()
        self._on_written(step)


def finish_saves(url: str) -> None:
    """Wait until all states submitted for a place are saved, by a writer of this process that was not closed.

    A training that ended with an exception leaves such a writer; the next reader must find what it submitted.
    """
    writer = _last.pop(url, None)
    if writer is not None:
        writer.close()


def _checked(part: Part) -> Part:
    return dataclasses.replace(part, arrays=as_arrays(part.arrays))
