"""TFRecord files whose records are any bytes, such as the user's own protocol buffers, or tf.train.SequenceExample."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples import numpy_reader
from tfdist.data.foreign.foreign_files import Files, Places, narrow
from tfdist.data.foreign.kept_index import Arrays, kept
from tfdist.data.foreign.record_contents import Records
from tfdist.data.format import record_framing

_Ids = NDArray[np.int64]


class RawRecords(Records):
    """The records of TFRecord files, found by one pass over their headers; checksums are verified at each read."""

    def __init__(self, paths: list[Path], content: str) -> None:
        files = Files(paths, "records")
        found = kept(files, lambda: _scanned(files))
        counts = found["counts"].tolist()
        self._places = Places(counts, found["offsets"])
        shards = [files.shard(number, count, self._places.of_file(number)) for number, count in enumerate(counts)]
        super().__init__(files, shards, content)

    def payloads(self, ids: _Ids) -> list[bytes]:
        shards, _, _ = self.locate(ids)
        begins, sizes = self._places(ids)
        lengths, checks = sizes - record_framing.OVERHEAD_BYTES, np.ones(len(ids), bool)
        found, sound = numpy_reader.read_records(
            self.files.maps, shards, begins, lengths, np.zeros_like(lengths), lengths, checks
        )
        if not sound.all():
            raise self.bad(int(ids[~sound][0]), "its checksum does not fit.")
        return found


def _scanned(files: Files) -> Arrays:
    found = []
    for number in range(len(files.paths)):
        scan = record_framing.scan(files.maps[number].data)
        if scan.problem:
            raise files.damaged(number, f"has records up to byte {scan.offsets[-1]}, and then {scan.problem}.")
        found.append(scan.offsets)
    counts = np.array([len(offsets) - 1 for offsets in found], np.int64)
    return {"counts": counts, "offsets": narrow(np.concatenate(found))}
