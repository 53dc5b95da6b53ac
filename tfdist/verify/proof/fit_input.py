"""The global batches of a `fit` under a strategy, written by the workers as their replicas get them, and reassembled.

The graph that reads the data writes one file per step and worker, after every cut, without Python.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.training.global_batches import Input
from tfdist.training.replica import batch_rows


class Written:
    """A writer of the first steps of a strategy's first input.

    ``part`` is this worker's part of a batch and ``spec`` that of a replica's data, both None before there is an input;
    ``is_own`` tells whether each worker reads data of its own.
    """

    def __init__(self, folder: str, worker: int, steps: int) -> None:
        self._folder = Path(folder, "input", f"worker-{worker}")
        self._folder.mkdir(parents=True)
        self._steps = steps
        self.part: int | None = None
        self.spec: Any = None
        self.is_own = False

    def __call__(self, elements: tf.data.Dataset, given: Input) -> tf.data.Dataset:
        if self.part is not None:  # of an evaluation inside of `fit`
            return elements
        self.part, self.spec = given.share.first, batch_rows.plain_spec(given.layout.spec[0][1])
        self.is_own = given.is_own
        return elements.enumerate().map(self._write)

    @tf.autograph.experimental.do_not_convert
    def _write(self, index: tf.Tensor, element: Any) -> Any:
        _, _, *slices = element  # behind a fingerprint and a number of examples

        def write() -> tf.Tensor:
            leaves = [tf.io.serialize_tensor(leaf) for leaf in tf.nest.flatten(slices, expand_composites=True)]
            now = tf.strings.as_string(tf.cast(tf.timestamp() * 1e6, tf.int64), width=20, fill="0")
            path = tf.strings.join([f"{self._folder}/", now, "-", tf.strings.as_string(index)])
            with tf.control_dependencies([tf.io.write_file(path, tf.io.serialize_tensor(tf.stack(leaves)))]):
                return tf.constant(0)

        with tf.control_dependencies([tf.cond(index < self._steps, write, lambda: tf.constant(0))]):
            return tf.nest.map_structure(tf.identity, element, expand_composites=True)


def batches(folder: str, parts: Sequence[int | None], spec: Any, count: int, *, whole: Sequence[str] = ()) -> list[Any]:
    """Return the first global batches that the replicas of all workers received, as nests of tensors."""
    first_of = {part: worker for worker, part in reversed(list(enumerate(parts)))}  # others have the same examples
    files = [sorted(Path(folder, "input", f"worker-{first_of[part]}").iterdir()) for part in sorted(first_of, key=str)]
    found = []
    for step in range(min(count, max(map(len, files), default=0))):
        slices = [one for of_part in files if step < len(of_part) for one in _slices(of_part[step], spec)]
        present = [data for rows, data in slices if rows] or [data for _, data in slices[:1]]
        wrapped = [batch_rows.with_whole(data, whole) for data in present]
        found.append(batch_rows.plain(tf.nest.map_structure(batch_rows.joined, *wrapped, expand_composites=False)))
    return found


def _slices(path: Path, spec: Any) -> list[tuple[int, Any]]:
    leaves = [leaf for leaf in tf.nest.flatten(spec, expand_composites=False) if leaf is not None]
    types = [[one.dtype for one in tf.nest.flatten(leaf, expand_composites=True)] for leaf in leaves]
    width = 1 + sum(map(len, types))
    written = tf.io.parse_tensor(tf.io.read_file(str(path)), tf.string)
    found = []
    for begin in range(0, int(written.shape[0]), width):
        mine = iter(written[begin : begin + width])
        rows = int(tf.io.parse_tensor(next(mine), tf.int32))
        packed = []
        for leaf, dtypes in zip(leaves, types, strict=True):
            parts = [tf.io.parse_tensor(next(mine), dtype) for dtype in dtypes]
            packed.append(tf.nest.pack_sequence_as(leaf, parts, expand_composites=True))
        found.append((rows, filled(spec, packed)))
    return found


def filled(spec: Any, leaves: Sequence[Any]) -> Any:
    """Return a nest like ``spec`` with other leaves in the place of those that are not None."""
    left = iter(leaves)
    return tf.nest.map_structure(lambda leaf: None if leaf is None else next(left), spec, expand_composites=False)


def reversed_rows(batch: Any, whole: Sequence[str] = ()) -> Any:

    def turned(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, batch_rows.Whole) or leaf.shape.rank == 0:
            return leaf
        if isinstance(leaf, tf.SparseTensor):
            first = leaf.dense_shape[0] - 1 - leaf.indices[:, :1]
            indices = tf.concat([first, leaf.indices[:, 1:]], axis=1)
            return tf.sparse.reorder(tf.SparseTensor(indices, leaf.values, leaf.dense_shape))
        return tf.gather(leaf, tf.range(_rows(leaf) - 1, -1, -1))

    given = batch_rows.with_whole(batch, whole)
    return batch_rows.plain(tf.nest.map_structure(turned, given, expand_composites=False))


def difference(one: Any, other: Any) -> tuple[str, str]:
    """Compare a batch with one device's, in any order: return "", "examples" or "rows", and the input that differs."""
    names, ours, theirs = _leaves(one), tf.nest.flatten(one), tf.nest.flatten(other)
    found = ""
    for name, left, right in zip(names, ours, theirs, strict=True):
        if left is None or right is None:
            continue
        if left.shape.rank and _rows(left) != _rows(right):
            return "rows", f"{name} has {_rows(left)} rows, {_rows(right)} on one device"
        pairs = zip(
            tf.nest.flatten(left, expand_composites=True), tf.nest.flatten(right, expand_composites=True), strict=True
        )
        if not all(_same(a.numpy(), b.numpy()) for a, b in pairs):
            found = "examples"
    return found, ""


def _leaves(nest: Any) -> list[str]:
    """Return the names of a batch's leaves: x, y and sample_weight, and a name or number in these."""
    found = []
    parts = ("x", "y", "sample_weight")
    given = nest if isinstance(nest, tuple) else (nest,)
    for part, inner in zip(parts, given, strict=False):
        paths = keras.tree.flatten_with_path(inner)
        found += ["".join([part, *(f"[{step!r}]" for step in path)]) for path, _ in paths]
    return found + ["input"] * (len(tf.nest.flatten(nest)) - len(found))


def _rows(leaf: Any) -> int:
    if isinstance(leaf, tf.RaggedTensor):
        return int(leaf.nrows())
    return int(leaf.dense_shape[0]) if isinstance(leaf, tf.SparseTensor) else int(leaf.shape[0])


def _same(left: Any, right: Any) -> bool:
    if np.array_equal(left, right):
        return True
    if left.shape != right.shape or not left.ndim:
        return False
    return sorted(row.tobytes() for row in _bytes(left)) == sorted(row.tobytes() for row in _bytes(right))


def _bytes(array: Any) -> Any:
    return array.astype("S") if array.dtype.kind == "O" else np.ascontiguousarray(array)
