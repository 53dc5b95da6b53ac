"""A cache of decoded examples, in memory or in local files, found by number in any order."""

import errno
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.errors import ConfigError
from tfdist.storage.files import explained

MEMORY = "memory"
_LARGEST_PART = 0.8  # of what is free


class DecodedCache:
    """A cache of decoded examples: an array for each feature, with a place for each example."""

    def __init__(self, where: str | os.PathLike[str], examples: int) -> None:
        self._where = where
        self._count = examples
        self._filled = np.zeros(examples, bool)
        self._sound = np.zeros(examples, np.float32)
        self._arrays: list[NDArray[Any]] = []
        self._lock = threading.Lock()

    def through(
        self, ids: tf.Tensor, decode: Callable[[tf.Tensor], tuple[dict[str, Any], tf.Tensor]]
    ) -> tuple[dict[str, Any], tf.Tensor]:
        """Return examples and a mask of the sound ones: from the cache if it has all of them, else decoded and kept."""
        function = tf.function(decode, input_signature=[tf.TensorSpec([None], tf.int64)], autograph=False)
        traced = function.get_concrete_function().structured_outputs
        spec = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), traced)
        leaves = tf.nest.flatten(spec)
        self._allocate([_array_spec(leaf) for leaf in leaves[:-1]])
        present = tf.numpy_function(lambda ids: np.bool_(self._filled[ids].all()), [ids], tf.bool)
        present.set_shape([])

        def get(ids: NDArray[np.int64]) -> list[Any]:
            return [*(np.asarray(array[ids]) for array in self._arrays), self._sound[ids]]

        def kept() -> list[tf.Tensor]:
            return tf.numpy_function(get, [ids], [leaf.dtype for leaf in leaves])

        def made() -> list[tf.Tensor]:
            flat = tf.nest.flatten(decode(ids))
            with tf.control_dependencies([tf.numpy_function(self._put, [ids, *flat], tf.bool)]):
                return [tf.identity(value) for value in flat]

        flat = tf.cond(present, kept, made)
        for value, leaf in zip(flat, leaves, strict=True):
            value.set_shape([None, *leaf.shape[1:]])
        return tf.nest.pack_sequence_as(spec, flat)

    def _allocate(self, specs: list[tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        with self._lock:
            if self._arrays:
                return
            needed = self._count * sum(int(np.prod(shape, dtype=object)) * dtype.itemsize for shape, dtype in specs)
            in_memory = self._where == MEMORY
            free = psutil.virtual_memory().available if in_memory else psutil.disk_usage(_existing(self._where)).free
            if needed > free * _LARGEST_PART:
                raise ConfigError(
                    f"cache={str(self._where)!r} needs {needed / 2**30:.1f} GiB for {self._count} decoded examples; "
                    f"{free / 2**30:.1f} GiB are free. "
                    + ("Pass a folder on a disk" if in_memory else "Free some")
                    + ", or leave cache out."
                )
            self._arrays = [self._array(shape, dtype) for shape, dtype in specs]

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        whole = (self._count, *shape)
        if self._where == MEMORY:
            return np.zeros(whole, dtype)
        folder, size = _existing(self._where), int(np.prod(whole, dtype=object)) * dtype.itemsize
        # a file with holes would end this process by a signal once the disk is full
        with explained(Path(folder), "written"), tempfile.TemporaryFile(dir=folder) as file:
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, size))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
                    raise
                file.truncate(max(1, size))  # this file system reserves nothing
            return np.memmap(file, dtype, "r+", shape=whole)

    def _put(self, ids: NDArray[np.int64], *values: Any) -> np.bool_:
        *columns, sound = values
        for array, column in zip(self._arrays, columns, strict=True):
            array[ids] = column
        self._sound[ids] = sound
        self._filled[ids] = True  # last: a thread that sees it set finds the rest
        return np.bool_(True)


def _array_spec(leaf: tf.TensorSpec) -> tuple[tuple[int, ...], np.dtype[Any]]:
    if leaf.dtype == tf.string or None in leaf.shape[1:].as_list():
        raise ConfigError(
            f"a decoded example has a tensor {leaf.dtype.name} of shape {leaf.shape[1:]}; the cache keeps numbers of "
            "one shape. Let decode return those, for instance resized pictures, or leave cache out."
        )
    return tuple(leaf.shape[1:].as_list()), np.dtype(leaf.dtype.as_numpy_dtype)


def _existing(folder: Any) -> str:
    os.makedirs(folder, exist_ok=True)
    return os.fspath(folder)
