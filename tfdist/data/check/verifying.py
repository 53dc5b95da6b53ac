"""Read every byte of a directory of examples, and report each fault with its place."""

import dataclasses
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from tfdist import validation
from tfdist.data.check.shard_check import MISSING, Examined, Place, examine
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format.data_manifest import Manifest, read_manifest, require_manifest
from tfdist.data.format.picture_decoding import Decode, decoding
from tfdist.data.writing.foreign_tfrecords import place_of
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import Storage
from tfdist.waiting import awaited

#: Called with the bytes that were read, and how many there are.
Progress = Callable[[int, int], None]

_LISTED = 5
_MOST_LOCAL, _MOST_REMOTE = 4, 8  # shards at once


@dataclass(frozen=True)
class Report:
    """The result of verifying a directory; the directory is sound if ``places`` is empty.

    Attributes:
        url: the directory.
        revision: the revision of its manifest; None if the manifest cannot be trusted.
        examples: the number of examples, according to the manifest.
        sound: the number of examples that can be read.
        shards: the number of files that the manifest names.
        bytes: the size of these files, according to the manifest.
        contents: whether records were parsed, too, and not only their checksums verified.
        places: the faults, in the order of the shards.
        decoded: whether pictures were decoded as well.
    """

    url: str
    revision: int | None
    examples: int
    sound: int
    shards: int
    bytes: int
    contents: bool
    places: tuple[Place, ...]
    decoded: bool = False

    @property
    def is_sound(self) -> bool:
        """Whether the directory has no fault."""
        return not self.places

    def require_sound(self) -> "Report":
        """Return the report if the directory is sound.

        Raises:
            CorruptDataError: the directory is not sound; the message lists the first faults and the cure.
        """
        if self.is_sound:
            return self
        more = f"; and {len(self.places) - _LISTED} more places" if len(self.places) > _LISTED else ""
        raise CorruptDataError(
            f"{self.url} is corrupt: {'; '.join(map(str, self.places[:_LISTED]))}{more}. {self.cure}", path=self.url
        )

    @property
    def cure(self) -> str:
        """Advice on how to repair the directory; empty if there is nothing to do."""
        if self.is_sound:
            return ""
        flag = " --rebuild-manifest" if self.revision is None else " --decode" if self.decoded else ""
        if any(one.problem == MISSING and one.examples for one in self.places):
            flag += " --drop-missing"
        return f"Copy the files again, or run `tfdist data repair {self.url}{flag}`: it keeps all that is whole."

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report for people."""
        yield from map(str, self.places)
        if self.revision is not None:
            what = "decoded" if self.decoded else "parsed" if self.contents else "checked by checksum"
            which = f"All {self.examples}" if self.is_sound else f"{self.sound} of {self.examples}"
            yield f"{which} examples in {validation.counted(self.shards, 'shard')} are sound; all were {what}."
        if not self.is_sound:
            yield self.cure

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON for programs."""
        return {**dataclasses.asdict(self), "is_sound": self.is_sound, "cure": self.cure}

    def __str__(self) -> str:
        return "\n".join(self.lines())


def verify(
    directory: str | os.PathLike[str],
    *,
    contents: bool = True,
    decode: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
) -> Report:
    """Read every byte of a directory, and report what is damaged: sizes, checksums, indices, and records.

    All bad records of a shard are found. Each shard is read once, in pieces of 8 MiB; a few shards are read at a time.

    Args:
        directory: a directory that `tfdist.data.write` or `tfdist.data.index` made; a path or an fsspec URL.
        contents: whether to parse each record as well. Without parsing, verification can take a tenth of the time.
        decode: whether to decode pictures with TensorFlow, in other processes: an undamaged record may hold a picture
            that was broken before. This takes as long as training takes to decode them.
        progress: a function that is called now and then with the bytes read so far and the bytes in all.
        storage_options: options of fsspec's driver, such as ``{"anon": True}``; for URLs only.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it, as in the caches
            of DVC and of hubs. Default: they are refused.
    Returns:
        The report. A manifest that cannot be trusted is one of its faults.
    Raises:
        ConfigError: there is no manifest; or ``decode`` is given, but no feature can be a picture or ``contents`` is
            False.
        StorageError: a file cannot be read, for a reason that is not corruption.
        DataChangedError: the directory was overwritten or repaired meanwhile.

    Example:
        >>> import tempfile, pathlib, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.zeros((3, 2), "float32")}, folder)
        ...     shard = pathlib.Path(folder, "data-00000.tfrecord")
        ...     _ = shard.write_bytes(shard.read_bytes()[:-1] + b"?")
        ...     [(place.example, place.problem) for place in verify(folder).places]
        [(2, 'a payload whose checksum does not fit')]
    """
    if validation.boolean("decode", decode) and not contents:
        raise ConfigError(
            "decode parses records, and contents is False (--quick). Leave one of them out.",
            name="contents",
            received=contents,
        )
    place = place_of(directory, storage_options=storage_options, follow_symlinks=follow_symlinks)
    try:
        found = read_manifest(place)
    except CorruptDataError as error:
        said = str(error).removeprefix(f"{manifests.NAME} ").rstrip(".")
        return Report(place.url, None, 0, 0, 0, 0, contents, (Place(manifests.NAME, None, None, said),))
    with decoding(found.schema, found.total_bytes) if decode else nullcontext() as decodes:
        return verify_manifest(place, found, contents=contents, decode=decodes, progress=progress)


def verify_manifest(
    place: Storage,
    found: Manifest,
    *,
    contents: bool = True,
    decode: Decode | None = None,
    progress: Progress | None = None,
) -> Report:
    done = examine_all(place, found, contents=contents, decode=decode, progress=progress)
    if any(shard.places for shard in done):  # it is corrupt, or another one by now
        require_manifest(place, found)
    return Report(
        url=place.url,
        revision=found.revision,
        examples=found.examples,
        sound=sum(shard.sound for shard in done),
        shards=len(found.shards),
        bytes=found.total_bytes,
        contents=contents,
        places=tuple(bad for shard in done for bad in shard.places),
        decoded=decode is not None,
    )


def examine_all(
    place: Storage, found: Manifest, *, contents: bool = True, decode: Decode | None, progress: Progress | None
) -> list[Examined]:
    """Examine several shards at once: checksums and requests release the interpreter's lock."""
    firsts = [0]
    for shard in found.shards:
        firsts.append(firsts[-1] + shard.examples)
    seen = _Seen(found.total_bytes, progress)
    most = _MOST_REMOTE if place.local is None else min(_MOST_LOCAL, len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(max(1, min(most, len(found.shards))), "tfdist-verify") as pool:
        tasks = [
            pool.submit(
                examine, place, found, number, first=firsts[number], contents=contents, decode=decode, seen=seen.add
            )
            for number in range(len(found.shards))
        ]
        try:
            return [awaited(task).result() for task in tasks]
        except BaseException:
            seen.end()  # the pool waits for examinations under way, which would take minutes
            pool.shutdown(wait=False, cancel_futures=True)
            raise


class _Seen:
    """The bytes that were read by all threads, each of which ends at its next read once the others have to."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._progress = progress
        self._bytes = 0
        self._lock = threading.Lock()
        self._is_over = False

    def end(self) -> None:
        self._is_over = True

    def add(self, count: int) -> None:
        if self._is_over:
            raise CancelledError
        if self._progress is not None:
            with self._lock:
                self._bytes += count
                self._progress(min(self._bytes, self._total), self._total)
