"""Compressed files, which may unpack to nothing whole, or to more than memory holds."""

import contextlib
import io
from collections.abc import Iterator
from typing import Any, BinaryIO

import psutil

from tfdist.data.format.file_compression import ERRORS, GZIP, ZLIB, inflated
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.disk_errors import size_text

_BUFFER = 1 << 20


@contextlib.contextmanager
def unpacked(path: str, file: BinaryIO, kind: str = GZIP) -> Iterator[BinaryIO]:
    """Give what a compressed file has in it, to be read from its beginning.

    Example:
        >>> import gzip
        >>> with unpacked("a.csv.gz", io.BytesIO(gzip.compress(b"x,y"))) as file:
        ...     file.read()
        b'x,y'
    """
    if kind not in (GZIP, ZLIB):
        yield file
        return
    with inflated(file, kind) as raw, io.BufferedReader(_Explained(raw, path), _BUFFER) as buffered:
        yield buffered


def require_room(what: str, size: int, cure: str) -> None:
    """Refuse what is larger than the memory that is free.

    Example:
        >>> require_room("record 0 of a.gz", 1 << 60, "Make it smaller.")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        tfdist.errors.ConfigError: record 0 of a.gz has 1.0 EiB in memory, and ... are free. Make it smaller.
    """
    if size > (free := psutil.virtual_memory().available):
        raise ConfigError(
            f"{what} has {size_text(size)} in memory, and {size_text(free)} are free. {cure}", name=what, received=size
        )


def no_room(what: str, cure: str) -> ConfigError:
    """Return the error that says that the system gave no memory for something."""
    return ConfigError(f"{what} does not fit into the memory that this process may have. {cure}", name=what)


class _Explained(io.RawIOBase):
    """A file that is unpacked, whose errors say what it is of."""

    def __init__(self, raw: Any, path: str) -> None:
        self._raw, self._path = raw, path

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        try:
            data = self._raw.read(len(buffer))
        except ERRORS as error:
            raise CorruptDataError(
                f"{self._path} cannot be decompressed: {error}. Its name or its first bytes say that it is compressed; "
                "give it another name if it is not, else make it anew or copy it again.",
                path=self._path,
            ) from error
        buffer[: len(data)] = data
        return len(data)
