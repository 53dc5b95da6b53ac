"""TFRecord files whose records are any bytes, such as protocol buffers of one's own."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples import numpy_reader
from tfdist.data.examples.computed_examples import Columns
from tfdist.data.foreign.foreign_files import Files, Foreign, files_of
from tfdist.data.format import record_framing
from tfdist.data.format.schema import TEXT, Feature, Schema
from tfdist.errors import ConfigError

_Ids = NDArray[np.int64]


class RawRecords(Foreign):
    """A record is an example with the feature `record`; its checksum is checked each time."""

    def __init__(self, files: Files) -> None:
        shards, offsets, lengths = [], [], []
        for number in range(len(files.paths)):
            found = record_framing.scan(files.maps[number].data)
            if found.problem:
                raise files.damaged(number, f"has records up to byte {found.offsets[-1]}, and then {found.problem}.")
            begins = found.offsets
            offsets.append(begins[:-1])
            lengths.append(np.diff(begins) - record_framing.OVERHEAD_BYTES)
            shards.append(files.shard(number, len(begins) - 1, begins))
        self._offsets, self._lengths = np.concatenate(offsets), np.concatenate(lengths)
        super().__init__(files, Schema({"record": Feature(TEXT)}), shards)

    def columns(self, ids: _Ids, names: Iterable[str]) -> Columns:
        shards, _, _ = self.locate(ids)
        lengths, checks = self._lengths[ids], np.ones(len(ids), bool)
        found, sound = numpy_reader.read_records(
            self.files.maps, shards, self._offsets[ids], lengths, np.zeros_like(lengths), lengths, checks
        )
        if not sound.all():
            raise self.bad(int(ids[~sound][0]), "its checksum does not fit.")
        return dict.fromkeys(names, found)


def open_raw(source: Any) -> RawRecords:
    """The records of a file, of all files of a folder, or of those that wildcards match."""
    paths = files_of(source)
    if not paths:
        raise ConfigError(f"directory is {source!r}; there is no file.", name="directory", path=str(source))
    return RawRecords(Files(paths, "records"))
