"""A shard written anew with what is whole of another, and how a shard is described that is there already."""

from collections.abc import Callable

import numpy as np

from tfdist.data import records
from tfdist.data.contents import Contents
from tfdist.data.encode import Encoded
from tfdist.data.layout import FIXED
from tfdist.data.manifest import Shard
from tfdist.data.reindex import Gathered, batches
from tfdist.data.schema import Schema
from tfdist.data.shard import ShardWriter
from tfdist.data.shard_index import Index
from tfdist.data.storage import Storage
from tfdist.data.survey import Content, Found, walk
from tfdist.errors import CorruptDataError


class _NothingLeftError(Exception):
    """No record is left, so no file is to appear."""


def salvage(place: Storage, shard: str, anew: str, schema: Schema, layout: str) -> Shard | None:
    """Write the records of a shard that are whole, and examples of the schema, into another; None if there is none.

    Args:
        place: the directory.
        shard: the file to read.
        anew: the file to write.
        schema: of the examples.
        layout: of the directory.
    """
    contents = Contents(schema, layout)
    try:
        with ShardWriter(place, anew, layout) as writer:
            for batch in batches(walk(Content(place, shard))):
                payloads = [found.payload for found in batch if found.payload is not None]
                rows = contents.of(payloads)
                kept = np.array([row for row in range(len(payloads)) if row not in rows.problems], np.int64)
                if len(kept):
                    framed = [records.frame(payloads[row]) for row in kept.tolist()]
                    columns = {name: values[kept] for name, values in rows.columns.items()}
                    writer.add(Encoded(b"".join(framed), np.cumsum([len(frame) for frame in framed]), columns))
            if not writer.examples:
                raise _NothingLeftError
    except _NothingLeftError:
        return None
    assert writer.shard is not None
    return writer.shard


def described(
    place: Storage,
    shard: str,
    schema: Schema,
    layout: str,
    *,
    strict: bool = False,
    accept: Callable[[Found], None] | None = None,
) -> tuple[Shard, Index | None]:
    """Return what a manifest says of a shard that is there, without its index; and the index.

    Args:
        place: the directory.
        shard: its file.
        schema: of the examples.
        layout: of the directory.
        strict: whether a feature that the schema does not have is a fault.
        accept: called with what is no example of the schema; None: such a thing raises.
    Raises:
        CorruptDataError: something in it is no example of the schema, and may not be.
    """
    content = Content(place, shard)
    contents = Contents(schema, layout, strict=strict)
    gathered, count, lengths = Gathered(schema, layout), 0, {0}
    for batch in batches(walk(content)):
        rows = contents.of([found.payload or b"" for found in batch])
        for row, found in enumerate(batch):
            problem = found.problem or rows.problems.get(row, "")
            if not problem:
                continue
            if accept is None:
                raise CorruptDataError(f"{shard}, byte {found.offset}, record {count + row}: {problem}.")
            accept(found._replace(problem=problem))
        gathered.add([found.offset for found in batch], rows.columns)
        count += len(batch)
        sizes = [found.size - records.OVERHEAD_BYTES for found in batch]
        lengths = (lengths if count > len(batch) else set()) | {min(sizes), max(sizes)}
    about = Shard(
        file=shard,
        examples=count,
        bytes=content.size,
        crc32c=content.crc(),
        smallest=min(lengths),
        largest=max(lengths),
    )
    return about, None if layout == FIXED else gathered.index(content.size)
