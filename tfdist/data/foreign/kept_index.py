"""The results of passes over files, kept for their next opening: next to them, or in the user's cache."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist import cache as caches
from tfdist.data.foreign.foreign_files import Files, Places, narrow
from tfdist.errors import StorageError, TfdistError
from tfdist.storage.local_storage import LocalStorage

#: the folder next to the files
BESIDE = ".tfdist"
_CACHED = "foreign"  # the folder in the user's cache
_ABOUT = "about.json"  # written last
_VERSION = 1
_END_BYTES = 4096  # of each file, which tell it from another of its size and time
_SMALL = 4 << 20  # bytes: passing over them again takes milliseconds
_STEP = 1 << 18  # numbers that are copied at a time

Arrays = dict[str, NDArray[Any]]
_log = logging.getLogger(__name__)


def kept(files: Files, find: Callable[[], Arrays]) -> Arrays:
    """Return the arrays that a pass over files finds, or has found earlier if the files are unchanged since.

    The arrays of a new pass are kept in the user's cache.
    """
    identity, places = _identity(files), _places(files)
    found = next(filter(None, (_stored(place, identity) for place in places)), None)
    if found is None and sum(len(files.maps[number]) for number in range(len(files.paths))) < _SMALL:
        found = find()
    if found is None:
        found = _made(places[1:], identity, find)
    files.passes.append((files.kind, found))
    return found


def kept_places(files: Files, offsets_of: Callable[[Files, int], NDArray[Any]]) -> Places:
    """Return the places of examples that such a pass finds; ``offsets_of`` passes over the file of a number."""

    def find() -> Arrays:
        offsets = [offsets_of(files, number) for number in range(len(files.paths))]
        counts = np.array([len(found) - 1 for found in offsets], np.int64)
        return {"counts": counts, "offsets": narrow(np.concatenate(offsets))}

    found = kept(files, find)
    return Places(found["counts"].tolist(), found["offsets"])


def keep_beside(files: Files) -> None:
    """Keep the results of passes over these files next to them; in the user's cache if their folder is read-only."""
    for kind, arrays in files.passes:
        same = files.as_kind(kind)
        _made(_places(same), _identity(same), lambda arrays=arrays: arrays)  # type: ignore[misc]


def _made(places: Sequence[LocalStorage], identity: list[Any], find: Callable[[], Arrays]) -> Arrays:
    """Store the results of a pass in the first of these places that can be written, and return them."""
    found: list[Arrays] = []  # a second place needs no second pass
    reason: Exception | None = None
    for place in places:
        try:
            with place.lock():
                if (by_another := _stored(place, identity)) is not None:
                    return by_another
                found = found or [find()]
                _store(place, identity, found[0])
                return found[0]
        except StorageError as error:
            reason = error
    _log.warning("The index of %s is not kept, so it will be made again: %s", identity[2][0], reason)
    return found[0] if found else find()


def _places(files: Files) -> list[LocalStorage]:
    """Return the folder next to the files, and the one in the user's cache."""
    near = _digest(files.kind, *files.names)
    cached = _digest(files.kind, *(os.path.abspath(path) for path in files.paths))
    return [
        LocalStorage(Path(files.storage.local) / BESIDE / near),
        LocalStorage(caches.folder(os.environ) / _CACHED / cached),
    ]


def _digest(*names: str) -> str:
    return hashlib.blake2b("\0".join(names).encode(errors="surrogateescape"), digest_size=12).hexdigest()


def _identity(files: Files) -> list[Any]:
    """Return JSON that differs once a file has been written anew."""
    found: list[Any] = [_VERSION, files.kind]
    for number, (path, name) in enumerate(zip(files.paths, files.names, strict=True)):
        content = files.maps[number]
        ends = google_crc32c.value(content[:_END_BYTES].tobytes() + content[-_END_BYTES:].tobytes())
        found.append([name, len(content), path.stat().st_mtime_ns, ends])
    return found


def _stored(place: LocalStorage, identity: list[Any]) -> Arrays | None:
    try:
        about = json.loads(place.read(_ABOUT))
        if about["files"] != identity:
            return None
        found = {}
        for name, crc in about["arrays"].items():
            path = place.local / f"{name}.npy"
            array = np.load(path, mmap_mode="r" if path.stat().st_size > _END_BYTES else None, allow_pickle=False)
            if _crc(array) != crc:
                return None
            found[name] = array.view(np.ndarray)  # its slices cost less than a memmap's
    except (TfdistError, OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None
    return found


def _store(place: LocalStorage, identity: list[Any], arrays: Arrays) -> None:
    place.remove(_ABOUT)
    crcs = {}
    for name, array in arrays.items():
        whole = np.ascontiguousarray(array)
        with place.create(f"{name}.npy") as file:
            np.lib.format.write_array(file, whole, allow_pickle=False)
        crcs[name] = _crc(whole)
    with place.create(_ABOUT) as file:
        file.write(json.dumps({"files": identity, "arrays": crcs}).encode())


def _crc(array: NDArray[Any]) -> int:
    content, crc = array.reshape(-1), 0
    for at in range(0, len(content), _STEP):
        crc = google_crc32c.extend(crc, content[at : at + _STEP].tobytes())
    return int(crc)
