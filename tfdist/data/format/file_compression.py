"""Files of records as other programs leave them: plain, or compressed whole. Their first bytes tell, not their names.

Example:
    >>> from tfdist.data.format.record_framing import frame
    >>> kind_of(frame(b"record")), kind_of(zlib.compress(frame(b"record"))), kind_of(b"a text that has no record")
    ('plain', 'zlib', '')
"""

import gzip
import io
import zlib
from typing import Any, BinaryIO, cast

from tfdist.data.format.record_framing import HEADER_BYTES, header

PLAIN, GZIP, ZLIB = "plain", "gzip", "zlib"
VOID = "void"  # compressed, with nothing in it: what TensorFlow leaves of a shard that got no record
HEAD_BYTES = 4096  # which show of what kind a file is
_BUFFER = 1 << 20
#: what reading a compressed file raises where it is damaged or ends early
ERRORS = (gzip.BadGzipFile, EOFError, zlib.error)


def kind_of(head: bytes) -> str:
    """Return how a file of records is kept, from its first bytes; empty where it does not begin with one.

    A plain record may begin with the bytes that mark a compressed file, so its checksum is looked at first.
    """
    if _begins(head):
        return PLAIN
    kind = GZIP if head.startswith(b"\x1f\x8b") else ZLIB if _is_zlib(head) else ""
    if not kind:
        return ""
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)  # which takes both
    try:
        begin = inflate.decompress(head, HEADER_BYTES)
        if not begin and inflate.eof:  # members may follow, as where files were joined
            return kind_of(inflate.unused_data) if inflate.unused_data else VOID
        return kind if _begins(begin) else ""
    except zlib.error:  # damaged; whoever reads it says so
        return kind if kind == GZIP else ""


def inflated(file: BinaryIO, kind: str) -> BinaryIO:
    """Return the records of a file of a kind; reading raises one of `ERRORS` where it is damaged."""
    if kind == GZIP:
        return cast(BinaryIO, gzip.GzipFile(fileobj=file))
    return cast(BinaryIO, io.BufferedReader(_Inflated(file), _BUFFER)) if kind == ZLIB else file


def _begins(head: bytes) -> bool:
    if len(head) < HEADER_BYTES:
        return False
    return head[:HEADER_BYTES] == header(int.from_bytes(head[:8], "little"))


def _is_zlib(head: bytes) -> bool:
    return len(head) > 1 and head[0] & 0x0F == 8 and head[0] >> 4 <= 7 and int.from_bytes(head[:2], "big") % 31 == 0


class _Inflated(io.RawIOBase):
    """What a file that was compressed by zlib holds; of files that were joined, what all of them hold."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._inflate = zlib.decompressobj()
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        while True:
            if self._inflate.eof:
                self._left = self._inflate.unused_data or self._file.read(_BUFFER)
                if not self._left:
                    return 0
                self._inflate = zlib.decompressobj()
            given = self._left or self._file.read(_BUFFER)
            found = self._inflate.decompress(given, len(buffer))
            self._left = self._inflate.unconsumed_tail
            if found:
                buffer[: len(found)] = found
                return len(found)
            if not given and not self._inflate.eof:
                raise EOFError("the compressed file ends before its end was marked")
