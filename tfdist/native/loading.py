"""A library of ops, compiled where it is not kept, and loaded into TensorFlow."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tfdist.errors import TfdistError
from tfdist.native import library
from tfdist.native.target import observe

_log = logging.getLogger(__name__)
_Loaded = TypeVar("_Loaded")


def load(of: library.Library, made: Callable[[Path], _Loaded]) -> _Loaded:
    """Return what is made of a library that TensorFlow can load, compiled by the first process that asks.

    Args:
        of: which library.
        made: loads the library at a path, and returns what calls it.
    Raises:
        TfdistError: it cannot be compiled or loaded; see `library.build`.

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
