"""The inner loops of codecs in C++, where available; otherwise codecs use TensorFlow's operations.

Both give the same words and numbers, bit for bit, in a `tf.function`: `tfdist/native/codecs` draws the numbers of
`tf.random.stateless_uniform`, and all sums have one order. Two things are left open: which of several NaNs survives,
and numbers below 2**-126. The kernels flush these to zero, as TensorFlow's threads do. The thread of an operation that
is called eagerly does not.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from tfdist.native import library
from tfdist.native.library import load_or_none, module_of
from tfdist.native.ops import is_wanted

_OPS = (
    *("group_sums", "group_largest", "to_levels", "from_levels", "to_signs", "from_signs", "to_powers", "from_powers"),
    "largest",
)
_alone = threading.Lock()
_runs_elsewhere: ContextVar[bool] = ContextVar("_runs_elsewhere", default=False)


def kernels() -> Any | None:
    """Return the module of the ops, compiled by the first process that asks; None if TensorFlow's ops are to be used.

    TensorFlow's are used on a machine with GPUs, where the gradients are; with TFDIST_NATIVE=0; in
    `for_other_processes`; and if nothing can be compiled, which causes one warning.

    Example:
        >>> words = kernels().tfdist_to_signs(rows)  # doctest: +SKIP
    """
    if not is_wanted() or _runs_elsewhere.get() or tf.config.get_visible_devices("GPU"):
        return None
    with _alone:
        return _loaded()


@contextlib.contextmanager
def for_other_processes() -> Iterator[None]:
    """Trace without kernels, for a process that has not loaded them, such as a server."""
    token = _runs_elsewhere.set(True)
    try:
        yield
    finally:
        _runs_elsewhere.reset(token)


def key_and_counter(seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the key and the counter at which the random numbers of a seed begin, for kernels."""
    key, counter = tf.raw_ops.StatelessRandomGetKeyCounter(seed=seed)
    return key, counter


def shaped(tensor: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
    """Set the shape of a kernel's result, which TensorFlow does not know in a graph."""
    tensor.set_shape(shape)
    return tensor


@cache
def _loaded() -> Any | None:
    return load_or_none(library.CODECS, _module, instead="Gradients are compressed by TensorFlow's operations")


def _module(path: Path) -> Any:
    return module_of(path, [f"tfdist_{name}" for name in _OPS])
