"""Callbacks of users that change while they train and have no `get_state`: what they know is lost with the process."""

import contextlib
import functools
import hashlib
import itertools
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfdist.compat.keras import callback_fields

_logger = logging.getLogger("tfdist")
_SMALL = 16  # items of a collection that are compared one by one
_DEPTH = 4  # of collections in collections
_OWN = ("keras.", "tfdist.")  # modules whose callbacks are known
_OF_KERAS = {"params", "_model", "model", "validation_data"}


class Unsaved:
    """The attributes that callbacks without `get_state` have changed since training began."""

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback]) -> None:
        self._callbacks = [
            one
            for one in callbacks
            if not type(one).__module__.startswith(_OWN)
            and not (callable(getattr(one, "get_state", None)) and callable(getattr(one, "set_state", None)))
            and callback_fields.state(one) is None
        ]
        self._first: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Note the attributes as they are now, behind `on_train_begin`."""
        self._first = [_attributes(one) for one in self._callbacks]

    def state(self) -> dict[str, Any]:
        """Return what has changed, as JSON."""
        changed: dict[str, list[str]] = {}
        for callback, first in zip(self._callbacks, self._first, strict=True):
            now = _attributes(callback)
            if names := [name for name in now if now[name] != first.get(name)]:
                changed.setdefault(_name_of(callback), []).extend(names)
        return {"process": _process(), "changed": changed}

    def tell(self, saved: Mapping[str, Any] | None) -> None:
        """Warn of what has changed in the process before this one."""
        if saved is None or saved["process"] == _process():  # its objects are still there
            return
        here = {_name_of(one) for one in self._callbacks}
        for name, attributes in saved["changed"].items():
            if name in here:
                _logger.warning(
                    "The callback %s had changed its attributes (%s) before the backup, and a backup has the state of "
                    "callbacks with get_state() and set_state(state) alone: it begins with what its __init__ and "
                    "on_train_begin have set. Give it both methods if that matters.",
                    name,
                    ", ".join(sorted(set(attributes))),
                )


@functools.cache
def _process() -> str:
    """Return a name that no other process has."""
    return secrets.token_hex(8)


def _name_of(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _attributes(callback: keras.callbacks.Callback) -> dict[str, Any]:
    now = vars(callback).copy()  # a thread of the callback's may add to it
    found = {name: _digest(value) for name, value in now.items() if name not in _OF_KERAS}
    return {name: digest for name, digest in found.items() if digest is not None}


def _digest(value: Any, depth: int = _DEPTH) -> Any:
    """Return something that differs if a value does, None for objects that are not compared."""
    if isinstance(value, (bool, int, float, str, np.generic)):
        return type(value).__name__, repr(value)
    if isinstance(value, np.ndarray):
        return value.shape, hashlib.sha256(value.tobytes()).digest() if value.nbytes < 2**16 else b""
    if isinstance(value, (list, tuple, set, frozenset, dict)):
        items = value.items() if isinstance(value, dict) else value
        few = itertools.islice(items, _SMALL if depth else 0)  # it may contain itself
        with contextlib.suppress(RuntimeError):  # a thread of the callback's changes it at this moment
            return type(value).__name__, len(value), [_digest(item, depth - 1) for item in few]
    return ("None",) if value is None else None
