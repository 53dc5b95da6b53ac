"""TFRecord files whose records are any bytes, such as the user's own protocol buffers, or tf.train.SequenceExample."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples import numpy_reader
from tfdist.data.foreign.foreign_files import Files
from tfdist.data.foreign.kept_index import kept_places
from tfdist.data.foreign.record_contents import Records
from tfdist.data.format import record_framing

_Ids = NDArray[np.int64]


class RawRecords(Records):
    """The records of TFRecord files, found by one pass over their headers; checksums are verified at each read."""

    def __init__(self, paths: list[Path], content: str) -> None:
        files = Files(paths, "records")
        self._places = kept_places(files, _offsets)
        super().__init__(files, self._places.shards(files), content)

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


def _offsets(files: Files, number: int) -> _Ids:
    scan = record_framing.scan(files.maps[number].data)
    if scan.problem:
        raise files.damaged(number, f"has records up to byte {scan.offsets[-1]}, and then {scan.problem}.")
    return scan.offsets
