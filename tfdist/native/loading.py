"""Load a library of ops into TensorFlow, compiling it if necessary."""

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from tfdist.errors import TfdistError
from tfdist.native import library
from tfdist.native.build_target import observe

_log = logging.getLogger(__name__)
_Loaded = TypeVar("_Loaded")


def load(of: library.Library, made: Callable[[Path], _Loaded]) -> _Loaded:
    """Return what is made of a library that TensorFlow can load, compiled by the first process that asks.

    Example:
        >>> load(library.RECORDS, Records)  # doctest: +SKIP
    """
    import tensorflow as tf

    target, environ = observe(), dict(os.environ)
    built = library.build(of, target, environ, on_start=_log.warning)
    try:
        return made(built.path)
    except (tf.errors.OpError, OSError) as error:
        if built.was == "built":
            raise TfdistError(f"{built.path} cannot be loaded ({error})") from error
    # It may have been compiled on a machine with newer libraries.
    built = library.build(of, target, environ, force=True, on_start=_log.warning)
    try:
        return made(built.path)
    except (tf.errors.OpError, OSError) as error:
        raise TfdistError(f"{built.path} cannot be loaded ({error})") from error


def load_or_none(of: library.Library, made: Callable[[Path], _Loaded], *, instead: str) -> _Loaded | None:
    """Return what `load` does, or None and a warning where the library cannot be had.

    Example:
        >>> load_or_none(library.RECORDS, Records, instead="Records are read through NumPy")  # doctest: +SKIP
    """
    try:
        return load(of, made)
    except (TfdistError, OSError, AttributeError) as error:
        _log.warning("%s, which takes longer, because tfdist's ops are missing: %s", instead, error)
        return None


def module_of(path: Path, names: Iterable[str]) -> Any:
    """Return the module of a library's ops."""
    import tensorflow as tf

    module = tf.load_op_library(str(path))
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise TfdistError(f"{path} has no op {missing}. Compile it anew: tfdist build ops --force")
    return module
