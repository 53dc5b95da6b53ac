"""ArrayRecord files: records by number, read by the library array_record."""

import threading
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist.data.foreign.foreign_files import Files
from tfdist.data.foreign.record_contents import Records
from tfdist.errors import CorruptDataError, MissingDependencyError

_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"  # those that its makers name for random access
_Ids = NDArray[np.int64]


class ArrayRecords(Records):
    """The records of ArrayRecord files that were closed by their writer; the library sees no records in others."""

    def __init__(self, files: Files, content: str) -> None:
        self._readers = [_opened(files, number) for number in range(len(files.paths))]
        self._lock = threading.Lock()
        counts = [reader.num_records() for reader in self._readers]
        shards = []
        for number, count in enumerate(counts):
            end = files.maps[number][-1 << 16 :]  # says where the index is, and has its hash
            shards.append(files.shard(number, count, np.array([google_crc32c.value(end.tobytes())])))
        super().__init__(files, shards, content)

    def payloads(self, ids: _Ids) -> list[bytes]:
        shards, places, _ = self.locate(ids)
        found: list[bytes] = [b""] * len(ids)
        for shard in np.unique(shards).tolist():
            here = np.flatnonzero(shards == shard)
            try:
                with self._lock:  # a reader is one file handle with buffers
                    records = self._readers[shard].read(places[here].tolist())
            except RuntimeError as error:
                if len(ids) > 1:  # to name the record
                    for number in ids[here].tolist():
                        self.payloads(np.array([number]))
                raise self.bad(int(ids[here[0]]), str(error)) from error
            for at, record in zip(here.tolist(), records, strict=True):
                found[at] = record
        return found


def _opened(files: Files, number: int) -> Any:
    try:
        from array_record.python.array_record_module import ArrayRecordReader
    except ImportError as error:
        raise MissingDependencyError(
            f"ArrayRecord files need array_record, which cannot be imported ({error}). Run: python -m pip install "
            "'tfdist[array-record]'",
            name="array_record",
        ) from error
    path = str(files.paths[number])
    try:
        reader = ArrayRecordReader(path, _OPTIONS)
    except (RuntimeError, ValueError) as error:
        raise CorruptDataError(f"{path} is not an ArrayRecord file: {error}", path=path) from error
    if not reader.ok():
        raise files.damaged(number, "has no index at its end: it was cut, or its writer was not closed yet.")
    return reader
