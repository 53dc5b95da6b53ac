"""The errors of tfdist: a base class, and a child for each kind of cause, which is also a fitting built-in exception.

A message says what was received, what is required, and what to do about it. Programs read the fields instead: messages
may be reworded in any release.

Example:
    >>> try:
    ...     raise ConfigError("workers is 0; it must be at least 1. Pass -n 1 or more.")
    ... except ValueError as error:
    ...     print(isinstance(error, TfdistError))
    True
"""

import os
import textwrap
from collections.abc import Iterable
from typing import Any, Final

_NOTHING: Final = object()  # None is a value that may be received


class TfdistError(Exception):
    """The base class of all errors that tfdist raises on purpose; catch it to catch them all.

    A field that does not apply to an error is None, or empty.

    Attributes:
        name: the name of the faulty thing, as the user knows it: an argument, a flag, a variable, a layer, a feature, a
            package.
        received: the value received, as text.
        path: the path or URL of the file, directory or object.
        workers: the indices of the workers that the error concerns, in increasing order.

    Example:
        >>> error = ConfigError("workers is 0; it must be at least 1.", name="workers", received=0)
        >>> error.name, error.received, error.path, error.workers
        ('workers', '0', None, ())
    """

    name: str | None
    received: str | None
    path: str | None
    workers: tuple[int, ...]

    def __init__(
        self,
        *args: object,
        name: str | None = None,
        received: object = _NOTHING,
        path: str | os.PathLike[str] | None = None,
        workers: Iterable[int] = (),
    ) -> None:
        super().__init__(*args)
        # set after the built-in parent's fields, because ImportError sets a `name` of its own
        self.name = name
        # as text: an error crosses processes, and must neither hold a tensor nor fail to be pickled
        self.received = None if received is _NOTHING else received if isinstance(received, str) else repr(received)
        self.path = None if path is None else os.fspath(path)
        self.workers = tuple(sorted(workers))
        # AutoGraph raises an error with this attribute as it is; any other becomes a StagingError, without fields
        self.ag_pass_through = True


class ConfigError(TfdistError, ValueError):
    """An argument, a flag, an environment variable or a file has a value that cannot be used."""


class ConfigTypeError(ConfigError, TypeError):
    """A value has the wrong type; a bool given for an integer is one."""


class UnsupportedError(TfdistError, NotImplementedError):
    """A valid request that tfdist refuses, because doing it would give wrong numbers or is not possible."""


class MissingDependencyError(TfdistError, ImportError):
    """A package is missing, or is present in a version that cannot work."""


class DeadlineError(TfdistError, TimeoutError):
    """A wait has reached its deadline; the message names the worker that did not answer."""


class DisagreementError(TfdistError, RuntimeError):
    """Workers that must agree do not (data, number of steps, shapes); the message names them."""


class CorruptDataError(TfdistError, ValueError):
    """Data that is read does not have its checksum, or is not what its description says; the message says where."""


class DataChangedError(TfdistError, RuntimeError):
    """A directory of examples is not the one that a reader opened: it was written anew, repaired or removed."""


class ServerLostError(TfdistError, ConnectionError):
    """A parameter server has gone, and the variables that it kept with it."""


class WorkerLostError(TfdistError, ConnectionError):
    """A worker that others need has ended, or does not answer; the message names it."""


class WorkerFailedError(TfdistError, RuntimeError):
    """Workers of a job that this process has started have failed; the message names the first and has its traceback.

    Attributes:
        worker: the index of the worker that failed first; None if it is not known.
        exit_code: the exit code of the job: the worker's, or 128 + the number of the signal that killed it.
    """

    def __init__(self, message: str, *, worker: int | None = None, exit_code: int = 1) -> None:
        super().__init__(message, workers=() if worker is None else (worker,))
        self.worker = worker
        self.exit_code = exit_code

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows: the message, with the worker's traceback but no local frames."""
        return f"{type(self).__name__}: {self}".splitlines()


class StorageError(TfdistError, OSError):
    """A file or an object cannot be read or written; the message names it. `errno` is the system's."""


class MissingFileError(StorageError, FileNotFoundError):
    """A required file does not exist."""


class ShortReadError(StorageError, EOFError):
    """A file ends before the requested bytes: it was cut, or replaced by another."""


def fields_of(error: BaseException | None) -> dict[str, Any]:
    """Return the fields of an error, as arguments for a more detailed error.

    Example:
        >>> fields_of(ConfigError("epochs is 0.", name="epochs", received=0))
        {'name': 'epochs', 'received': '0'}
    """
    if not isinstance(error, TfdistError):
        return {}
    fields = {name: getattr(error, name) for name in ("name", "received", "path", "workers")}
    return {name: value for name, value in fields.items() if value not in (None, ())}


# beginnings of those lines of an error of TensorFlow or Keras that say where it occurred
_AROUND = (
    "Graph execution error",
    "Detected at ",
    'File "',
    "<stack traces",
    "[[",
    "Exception encountered when calling",
)
# around the message of an error that Keras has caught in a layer
_BOLD = ("\x1b[1m", "\x1b[0m")


def cause_of(text: str) -> str:
    """Return the line of an error of TensorFlow or Keras that states the cause.

    If a graph or a function of AutoGraph has failed, this line comes after the place in the code.

    Args:
        text: the text of the error; the lines of a place are indented.

    Example:
        >>> cause_of("Graph execution error:\\n\\nDetected at node f\\n  File f.py\\nNaN found.\\n\\t [[{{node f}}]]")
        'NaN found'
        >>> cause_of("Exception encountered when calling Mine.call().\\n\\n\\x1b[1mNaN found.\\x1b[0m")
        'NaN found'
        >>> cause_of("")
        'nothing'
    """
    for mark in _BOLD:
        text = text.replace(mark, "")
    text = textwrap.dedent(text.removeprefix("in user code:"))  # AutoGraph indents what follows
    lines = [line for line in text.splitlines() if line.strip() and not line[0].isspace()]
    said = next((line for line in lines if not line.startswith(_AROUND)), "nothing")
    return said.split(" [[")[0].split(" [Op:")[0].strip().rstrip(".")
