"""The journal of finished shards, from which an interrupted write resumes.

A file of JSON lines: the job, then each finished shard. It is removed when the manifest is in place.
"""

import dataclasses
import hashlib
import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from tfdist.data.format.data_manifest import IndexFile, Shard
from tfdist.errors import TfdistError
from tfdist.storage.directory import Storage

NAME = "writing.jsonl"
_BEGINNING = re.compile(rb'\{"job": "[0-9a-f]{64}", "revision"')


def is_in(folder: Path) -> bool:
    """Return whether a local folder has a journal, and not a user's file of this name."""
    with suppress(OSError), open(folder / NAME, "rb") as file:
        return bool(_BEGINNING.match(file.read(100)))
    return False


class Journal:
    """The finished shards of one job, by number, with their examples and bytes in all.

    `is_new`: there is no journal of this job; `others`: the finished shards in the journal of another one.
    `revision` will name the shards.
    """

    def __init__(self, storage: Storage, job: dict[str, Any]) -> None:
        self._storage = storage
        self._digest = hashlib.sha256(json.dumps(job, sort_keys=True).encode()).hexdigest()
        self.shards: dict[int, Shard] = {}
        self._unwritten: list[dict[str, Any]] = []  # at most a hundredth of the shards
        self.is_new = True
        self.others = 0
        self.revision = 1
        if NAME in storage.names():
            self._read(storage.read(NAME))
        self.examples = sum(shard.examples for shard in self.shards.values())
        self.bytes = sum(shard.bytes for shard in self.shards.values())

    def _read(self, data: bytes) -> None:
        lines = []
        for line in data.split(b"\n"):
            try:
                lines.append(json.loads(line))
            except ValueError:  # the end of a line that was being written
                continue
        if not lines or not isinstance(lines[0], dict) or lines[0].get("job") != self._digest:
            self.others = len(lines[1:])
            return
        self.is_new = False
        self.revision = lines[0]["revision"]
        for line in lines[1:]:
            index = line["shard"].pop("index")
            ends = line["shard"].pop("ends")
            shard = Shard(
                **line["shard"],
                index=None if index is None else IndexFile(**index),
                ends=None if ends is None else (ends[0], ends[1]),
            )
            if self._is_there(shard):
                self.shards[line["number"]] = shard

    def _is_there(self, shard: Shard) -> bool:
        files = {shard.file: shard.bytes} | ({shard.index.file: shard.index.bytes} if shard.index else {})
        try:
            return all(self._storage.size(name) == size for name, size in files.items())
        except (FileNotFoundError, TfdistError):
            return False

    def begin(self, revision: int) -> None:
        """Forget earlier jobs, and begin the journal of a revision."""
        self.end()
        self.shards, self.examples, self.bytes = {}, 0, 0
        self._append({"job": self._digest, "revision": revision})
        self.is_new, self.revision = False, revision

    def add(self, number: int, shard: Shard) -> None:
        self.shards[number] = shard
        self.examples, self.bytes = self.examples + shard.examples, self.bytes + shard.bytes
        self._unwritten.append({"number": number, "shard": dataclasses.asdict(shard)})
        if 100 * len(self._unwritten) > len(self.shards):  # to append, an object store writes all of the file again
            self._append(*self._unwritten)
            self._unwritten.clear()

    def end(self) -> None:
        self._storage.remove(NAME)

    def _append(self, *lines: dict[str, Any]) -> None:
        self._storage.append(NAME, "".join(f"{json.dumps(line)}\n" for line in lines).encode())
