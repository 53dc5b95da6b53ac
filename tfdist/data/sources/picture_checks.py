"""A source whose pictures are decoded before they are written, so that a broken one is reported by name."""

import copy
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from tfdist.data.format.picture_decoding import WORTH_A_PROCESS, Look, look_at, pictures_of
from tfdist.data.sources.protocol import Block, Source, length, part_of
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.processes.pool.task_pool import TaskPool

_LISTED = 20


@contextmanager
def checked(
    sources: Iterable[Source], *, convert: bool = False, processes: int | None = None
) -> Iterator[list[Source]]:
    """Make sources that decode each of their pictures, for the duration of a block; sources without pictures stay."""
    given = list(sources)
    found: list[Source] = []
    following: Checked | None = None
    with TaskPool(processes or max(map(_processes, given), default=1)) as pool:
        for source in reversed(given):
            if any(feature.is_image for feature in source.schema.values()):
                source = following = Checked(source, pool, convert=convert, following=following)
            found.insert(0, source)
        yield found


class Checked:
    """A source whose pictures are decoded, in the processes of a pool; in another process, there."""

    def __init__(
        self, source: Source, pool: TaskPool, *, convert: bool = False, following: "Checked | None" = None
    ) -> None:
        self._source = source
        self._convert = convert
        self._pool: TaskPool | None = pool
        self._following = following
        self._is_part = False
        self.schema, self.count, self.sizes = source.schema, source.count, source.sizes
        self.seekable, self.identifies = source.seekable, source.identifies
        self.identity = {**source.identity, "pictures": "converted" if convert else "checked"}
        self._names = [name for name, feature in source.schema.items() if feature.is_image]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": None, "_following": None}

    def part(self, start: int, stop: int) -> "Checked":
        """Return a source of these pictures alone if they are in memory."""
        found = copy.copy(self)
        found._source = part_of(self._source, start, stop)
        found._is_part = found._source is not self._source
        return found

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        looked = self._looked(self._source.blocks(start, stop))
        for block, looks in looked:
            bad = self._bad(start, looks)
            start += length(block)
            if bad:
                raise self._error(bad + self._rest(looked, start, stop))
            yield self._converted(block, looks)

    def _looked(self, blocks: Iterator[Block]) -> Iterator[tuple[Block, dict[str, list[list[Look]]]]]:
        """Yield blocks, with the result for each picture, by feature and example."""
        names = self._names
        tasks = ((block, {name: pictures_of(self.schema[name], block[name]) for name in names}) for block in blocks)
        if self._pool is None:
            return ((block, _look_at_all(rows, self._convert)) for block, rows in tasks)
        return self._pool.each(_look_at_all, ((block, (rows, self._convert)) for block, rows in tasks))

    def _bad(self, start: int, looks: dict[str, list[list[Look]]]) -> list[tuple[str, Look]]:
        return [
            (self._where(start + place, name), look)
            for name, rows in looks.items()
            for place, row in enumerate(rows)
            for look in row
            if look.problem
        ]

    def _where(self, number: int, name: str) -> str:
        path_of = getattr(self._source, "path_of", None)
        return f"{name!r} of example {number}" if path_of is None else str(path_of(number))

    def _rest(self, looked: Any, at: int, stop: int | None) -> list[tuple[str, Look]]:
        """Return all other bad pictures that are known here, so that one run reports all of them."""
        bad: list[tuple[str, Look]] = []
        for block, looks in looked:
            bad += self._bad(at, looks)
            at += length(block)
        if self.seekable and not self._is_part and stop is not None and (self.count or 0) > stop:
            for block, looks in self._looked(self._source.blocks(stop, None)):
                bad += self._bad(stop, looks)
                stop += length(block)
        following = self._following
        while following is not None:
            at = 0
            for block, looks in following._looked(following._source.blocks(0, None)):
                bad += following._bad(at, looks)
                at += length(block)
            following = following._following
        return bad

    def _error(self, bad: list[tuple[str, Look]]) -> Exception:
        listed = "; ".join(f"{where} {look.problem}" for where, look in bad[:_LISTED])
        more = f"; and {len(bad) - _LISTED} more" if len(bad) > _LISTED else ""
        count = f"{len(bad)} pictures cannot be kept: " if len(bad) > 1 else ""
        cures = []
        if any(look.is_broken for _, look in bad):
            cures.append("Take out what is broken, or replace it.")
        if any(not look.is_broken for _, look in bad):
            cures.append("convert_images=True (--convert-images) stores other formats as PNG.")
        cures.append("check_images=False (--no-check-images) writes all as they are, for a decoder of your own.")
        kind = CorruptDataError if any(look.is_broken for _, look in bad) else ConfigError
        return kind(f"{count}{listed}{more}. {' '.join(cures)}")

    def _converted(self, block: Block, looks: dict[str, list[list[Look]]]) -> Block:
        if not any(look.content for rows in looks.values() for row in rows for look in row):
            return block
        found = dict(block)
        for name, rows in looks.items():
            pictures = pictures_of(self.schema[name], block[name])
            new = [
                [look.content or picture for look, picture in zip(looked, row, strict=True)]
                for looked, row in zip(rows, pictures, strict=True)
            ]
            found[name] = [row[0] for row in new] if self.schema[name].shape == () else new
        return found


def _look_at_all(rows: dict[str, list[list[bytes]]], convert: bool) -> dict[str, list[list[Look]]]:
    return {name: [look_at(row, convert=convert) for row in examples] for name, examples in rows.items()}


def _processes(source: Source) -> int:
    total = int(source.sizes.sum()) if source.sizes is not None else 0
    return max(1, min(len(os.sched_getaffinity(0)), total // WORTH_A_PROCESS))
