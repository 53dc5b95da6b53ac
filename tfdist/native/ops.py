"""The Python side of native ops: the loaded ops, or None with the reason in the log."""

import ctypes
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tfdist.native import library
from tfdist.native.library import load_or_none, module_of
from tfdist.variables import NATIVE

_OPS = ("tfdist_read_records", "tfdist_read_rows", "tfdist_parse_records")
_TAG = {"bytes": 0x0A, "float": 0x12, "int64": 0x1A}  # the tag of its list in a feature
_ANY_STATE: tuple[int, ...] = ()
_alone = threading.Lock()


class Records:
    """The ops that read records at known places of TFRecord files; `records` returns one instance.

    Guaranteed for any tensors and files: nothing outside of a file is read. A record is ok exactly when it lies in its
    file and, if it is checked, its length and both checksums fit. No byte of a record that is not ok is returned. Files
    are mapped into memory once per process. A file that was replaced, cut short or extended since the last call is
    mapped anew; one that is cut short during a call ends the process, as with any memory map.

    The ops run on the CPU, in any number of threads, without Python's lock. They have no state that TensorFlow knows
    of, like TensorFlow's `read_file`: in a graph with only constant arguments it may run them once.

    Attributes:
        path: the path of the library.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ops = module_of(path, _OPS)
        self._library = ctypes.CDLL(str(path))
        self._library.tfdist_unmap.restype = None
        self._library.tfdist_mapped.restype = ctypes.c_int64

    def read_records(
        self,
        files: Any,
        file: Any,
        offset: Any,
        length: Any,
        start: Any,
        size: Any,
        check: Any,
        *,
        state: Any = _ANY_STATE,
        framed: bool = True,
    ) -> tuple[Any, Any]:
        """Return a part of the payload of each record.

        Args:
            files: the paths, string ``[F]``.
            file: the index in ``files`` of each record's file, int32 ``[n]``.
            offset: the offset of each record's framing in its file, in bytes, int64 ``[n]``.
            length: the length of each payload, in bytes, int64 ``[n]``.
            start: the offset of the part in each payload, in bytes, int64 ``[n]``.
            size: the size of each part, in bytes, int64 ``[n]``.
            check: whether to check each record's length and checksums, bool ``[n]``.
            state: the expected device, inode, size and time of change in ns of each file, int64 ``[F * 4]``. No record
                is ok in a file that differs or cannot be opened. Default: files are not compared.
            framed: False for bytes without the header and the checksums of TFRecord files. ``offset`` is that of the
                first byte, and the only check is that the bytes are inside their file.
        Returns:
            The parts, string ``[n]``, and whether each record is ok, bool ``[n]``. The part of a record that is not ok
            is empty.
        Raises:
            tf.errors.InvalidArgumentError: vectors have different lengths, or an index is that of no file.
            tf.errors.OpError: a file cannot be opened.

        Example:
            >>> records().read_records(["a.tfrecord"], [0], [0], [3], [0], [3], [True])  # doctest: +SKIP
        """
        return tuple(
            self._ops.tfdist_read_records(
                files=files,
                file=file,
                offset=offset,
                length=length,
                start=start,
                size=size,
                check=check,
                state=state,
                framed=framed,
            )
        )

    def read_rows(
        self,
        files: Any,
        file: Any,
        offset: Any,
        check: Any,
        length: int,
        *,
        state: Any = _ANY_STATE,
        framed: bool = True,
    ) -> tuple[Any, Any]:
        """Return the payloads of records that all have the same length.

        Args:
            files: the paths, string ``[F]``.
            file: the index in ``files`` of each record's file, int32 ``[n]``.
            offset: the offset of each record's framing in its file, in bytes, int64 ``[n]``.
            check: whether to check each record's length and checksums, bool ``[n]``.
            length: the length of every payload, in bytes.
            state: the expected state of each file, as for `read_records`.
            framed: False for bytes without a frame, as for `read_records`.
        Returns:
            The payloads, uint8 ``[n, length]``, and whether each record is ok, bool ``[n]``. The payload of a record
            that is not ok is zeros.
        Raises:
            tf.errors.InvalidArgumentError: as for `read_records`; or ``length`` is longer than any file and more than
                a gigabyte of zeros would be returned.
            tf.errors.OpError: a file cannot be opened.

        Example:
            >>> records().read_rows(["a.tfrecord"], [0], [0], [True], 3)  # doctest: +SKIP
        """
        rows, ok = self._ops.tfdist_read_rows(
            files=files, file=file, offset=offset, check=check, state=state, length=length, framed=framed
        )
        count = getattr(file, "shape", (None,))[0]
        rows.set_shape([count, length])
        ok.set_shape([count])
        return rows, ok

    def parse_records(
        self,
        files: Any,
        file: Any,
        offset: Any,
        length: Any,
        check: Any,
        features: Sequence[tuple[str, str, int]],
        *,
        state: Any = _ANY_STATE,
    ) -> tuple[list[Any], Any]:
        """Return the values of records that clearly are a `tf.train.Example` with exactly these features, each once.

        Any other record is not ok: a feature is missing, additional, repeated, not packed, or of another kind or size,
        or a field is unknown. Such a record may be valid all the same: use `tf.io.parse_example` for it.

        Args:
            files: the paths, string ``[F]``.
            file: the index in ``files`` of each record's file, int32 ``[n]``.
            offset: the offset of each record's framing in its file, in bytes, int64 ``[n]``.
            length: the length of each payload, in bytes, int64 ``[n]``.
            check: whether to check each record's length and checksums, bool ``[n]``.
            features: the name of each feature, its kind (float, int64, or bytes for the one value of a list of bytes),
                and its number of values or bytes.
            state: the expected state of each file, as for `read_records`.
        Returns:
            The values of each feature, float32, int64 or uint8 ``[n, number]``, and whether each record is ok, bool
            ``[n]``. The values of a record that is not ok are zeros.
        Raises:
            tf.errors.InvalidArgumentError: as for `read_rows`.
            tf.errors.OpError: a file cannot be opened.

        Example:
            >>> features = [("x", "float", 40), ("label", "int64", 1)]
            >>> records().parse_records(["a.tfrecord"], [0], [0], [194], [True], features)  # doctest: +SKIP
        """
        *found, ok = self._ops.tfdist_parse_records(
            files=files,
            file=file,
            offset=offset,
            length=length,
            check=check,
            key=[name for name, _, _ in features],
            tag=[_TAG[kind] for _, kind, _ in features],
            count=[count for _, _, count in features],
            state=state,
        )
        rows = getattr(file, "shape", (None,))[0]
        ok.set_shape([rows])
        kinds = dict(zip(("float", "int64", "bytes"), found, strict=True))
        ends = dict.fromkeys(kinds, 0)
        values = []
        for _, kind, count in features:
            ends[kind] += count
            values.append(kinds[kind][:, ends[kind] - count : ends[kind]])
            values[-1].set_shape([rows, count])
        return values, ok

    def unmap(self) -> None:
        """Unmap all files; the next call maps them anew. TensorFlow keeps the kernels of eager calls for ever."""
        self._library.tfdist_unmap()

    @property
    def mapped(self) -> int:
        """The number of mapped files."""
        return int(self._library.tfdist_mapped())


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether TFDIST_NATIVE leaves the ops enabled."""
    return NATIVE.read(environ)


def records() -> Records | None:
    """Return the ops that read records, compiled by the first process that asks; None if they are not available.

    A warning gives the reason once; then `tfdist.data.examples.numpy_reader` does the same in NumPy. The answer is
    kept.

    Raises:
        ConfigError: TFDIST_NATIVE is neither 0 nor 1.

    Example:
        >>> ops = records()  # doctest: +SKIP
    """
    if not is_wanted():
        return None
    with _alone:
        return _load()


@cache
def _load() -> Records | None:
    return load_or_none(library.RECORDS, Records, instead="Records are read through NumPy")
