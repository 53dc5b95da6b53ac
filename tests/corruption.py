"""Directories of examples in each layout, and ways to damage them."""

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tfdist
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.format.record_framing import OVERHEAD_BYTES
from tfdist.data.format.schema import Feature, Schema
from tfdist.storage.directory import Storage

EXAMPLES = 10
LAYOUTS = ("fixed", "extent", "generic")

_GENERIC = Schema({"values": Feature("float32", (None,)), "label": Feature("int64")})


def examples_of(layout: str, count: int = EXAMPLES) -> list[dict[str, Any]]:
    """The examples of a directory; the label of each is its number."""
    generator = np.random.default_rng(7)
    if layout == "fixed":
        return [{"x": generator.normal(size=3).astype(np.float32), "label": np.int64(i)} for i in range(count)]
    if layout == "extent":
        return [{"image": generator.bytes(20 + i), "label": np.int64(i)} for i in range(count)]
    values = [generator.normal(size=1 + i % 4).astype(np.float32) for i in range(count)]
    return [{"values": value, "label": np.int64(i)} for i, value in enumerate(values)]


def write(directory: Any, layout: str, *, count: int = EXAMPLES, num_shards: int = 2) -> Manifest:
    """A directory of this layout."""
    schema = _GENERIC if layout == "generic" else None
    found = tfdist.data.write(examples_of(layout, count), directory, schema=schema, num_shards=num_shards)
    assert found.layout == layout
    return found


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Change bits of one byte of a file; its modification time changes, too."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


def flip_stored(place: Storage, name: str, offset: int, mask: int = 1) -> None:
    """The same in any storage."""
    data = bytearray(place.read(name))
    data[offset] ^= mask
    with place.create(name) as file:
        file.write(data)


def parts(examples: Examples, number: int) -> dict[str, tuple[str, int]]:
    """Return for each part of a record: its file and a byte of that part."""
    shards, offsets, lengths = examples.locate(np.array([number]))
    name, begin, length = examples.manifest.shards[int(shards[0])].file, int(offsets[0]), int(lengths[0])
    places = {
        "length": begin,
        "high byte of length": begin + 7,
        "checksum of length": begin + 9,
        "first byte": begin + 12,
        "middle": begin + 12 + length // 2,
        "last byte": begin + 12 + length - 1,
        "checksum": begin + OVERHEAD_BYTES + length - 2,
    }
    return {part: (name, offset) for part, offset in places.items()}


PARTS = ("length", "high byte of length", "checksum of length", "first byte", "middle", "last byte", "checksum")


class KilledError(BaseException):
    """The process ended here, as far as the directory is concerned."""


class Faulty:
    """A storage that ends its user at a step: before a file is there, while it is written, behind it, or at a removal.

    Args:
        inner: where the files are.
        step: how many steps go well; None: all.
    """

    def __init__(self, inner: Storage, step: int | None) -> None:
        self._inner = inner
        self._left = step
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _count(self) -> None:
        self.steps += 1
        if self._left is not None:
            if not self._left:
                raise KilledError
            self._left -= 1

    def create(self, name: str) -> Any:
        return _Creation(self._inner, name, self._count)

    def remove(self, name: str) -> None:
        self._count()
        self._inner.remove(name)
        self._count()


class _Creation:
    def __init__(self, inner: Storage, name: str, count: Callable[[], None]) -> None:
        self._inner, self._name, self._count = inner, name, count
        self._buffer = io.BytesIO()

    def __enter__(self) -> io.BytesIO:
        self._count()
        return self._buffer

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None:
            return
        self._count()
        with self._inner.create(self._name) as file:
            file.write(self._buffer.getvalue())
        self._count()


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a folder but the lock."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ".lock"}


def labels_of(examples: Any) -> list[int]:
    """The labels of examples, which say which ones they are."""
    return [int(found["label"]) for found in examples]


def damaged_copies(data: bytes, generator: np.random.Generator, count: int) -> Iterator[bytes]:
    """Yield copies of bytes with a few of them changed, cut, repeated or put in."""
    for _ in range(count):
        copy = bytearray(data)
        for _ in range(int(generator.integers(1, 4))):
            at = int(generator.integers(0, max(1, len(copy))))
            what = int(generator.integers(0, 5))
            if what == 0 and copy:
                copy[at] ^= 1 << int(generator.integers(0, 8))
            elif what == 1:
                del copy[at : at + int(generator.integers(1, 40))]
            elif what == 2:
                copy[at:at] = generator.bytes(int(generator.integers(1, 40)))
            elif what == 3:
                copy[at : at + 8] = generator.choice([b"\xff" * 8, b"\0" * 8, b"\xff" * 7 + b"\x7f"])
            else:
                copy[at:at] = copy[at : at + 50]
        yield bytes(copy)
