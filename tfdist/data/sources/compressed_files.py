"""Files of records and texts that are compressed as a whole, recognized by their first bytes and not by their names."""

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import psutil

from tfdist.data.format.record_framing import HEADER_BYTES, header
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.files import ExplainedFile, size_text

PLAIN, GZIP, ZLIB = "plain", "gzip", "zlib"
VOID = "void"  # compressed, with nothing in it: what TensorFlow leaves of a shard that got no record
HEAD_BYTES = 4096  # which show of what kind a file is
_CHUNK = 1 << 20
#: the errors of reading a compressed file that is damaged or ends early
ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)


def kind_of(head: bytes) -> str:
    """Detect the compression of a file of records by its first bytes; empty if it does not begin with a record.

    A plain record may begin with the bytes that mark a compressed file, so its checksum is checked first.
    """
    if _begins(head):
        return PLAIN
    is_zlib = len(head) > 1 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and not int.from_bytes(head[:2], "big") % 31
    kind = GZIP if head.startswith(b"\x1f\x8b") else ZLIB if is_zlib else ""
    if not kind:
        return ""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # which takes both
    try:
        begin = inflate.decompress(head, HEADER_BYTES)
        if not begin and inflate.eof:  # members may follow, as where files were joined
            return kind_of(inflate.unused_data) if inflate.unused_data else VOID
        return kind if _begins(begin) else ""
    except zlib.error:  # damaged, which reading it reports
        return kind if kind == GZIP else ""


def _begins(head: bytes) -> bool:
    if len(head) < HEADER_BYTES:
        return False
    return head[:HEADER_BYTES] == header(int.from_bytes(head[:8], "little"))


class _Inflated(io.RawIOBase):
    """The content of a file compressed with zlib, or of several that were joined."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj()
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while True:
            if self._inflate.eof:
                self._left = self._inflate.unused_data or self._file.read(_CHUNK)
                if not self._left:
                    return 0
                self._inflate = zlib.decompressobj()
            given = self._left or self._file.read(_CHUNK)
            found = self._inflate.decompress(given, len(buffer))
            self._left = self._inflate.unconsumed_tail
            if found:
                buffer[: len(found)] = found
                return len(found)
            if not given and not self._inflate.eof:
                raise EOFError("the compressed file ends before its end was marked")


@contextlib.contextmanager
def unpacked(path: str, file: BinaryIO, kind: str = GZIP) -> Iterator[BinaryIO]:
    """Open the content of a compressed file, from its beginning."""
    if kind not in (GZIP, ZLIB):
        yield file
        return
    inflated: Any = gzip.GzipFile(fileobj=file) if kind == GZIP else io.BufferedReader(_Inflated(file), _CHUNK)
    with inflated, io.BufferedReader(ExplainedFile(inflated, lambda: _explained(path)), _CHUNK) as read:
        yield read


@contextlib.contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except ERRORS as error:
        raise CorruptDataError(
            f"{path} cannot be decompressed: {error}. Its name or its first bytes say that it is compressed; give it "
            "another name if it is not, else make it anew or copy it again.",
            path=path,
        ) from error


def require_room(what: str, size: int, cure: str) -> None:
    if size > (free := psutil.virtual_memory().available):
        raise ConfigError(
            f"{what} has {size_text(size)} in memory, and {size_text(free)} are free. {cure}", name=what, received=size
        )


def no_room(what: str, cure: str) -> ConfigError:
    return ConfigError(f"{what} does not fit into the memory that this process may have. {cure}", name=what)
