"""The writing of an index for each record file, and of a manifest of all of them."""

from collections.abc import Iterator
from dataclasses import replace

import google_crc32c

from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import record_framing
from tfdist.data.format.contents import Contents, Gathered, batches
from tfdist.data.format.data_manifest import IndexFile, Manifest, Shard
from tfdist.data.format.record_framing import Content, walk
from tfdist.data.format.revisions import index_name, next_revision, revised
from tfdist.data.format.schema import FIXED, Schema, label_of, layouts
from tfdist.data.format.shard_index import Index
from tfdist.data.sources.tfrecords.inference import looked_at
from tfdist.data.writing.shard import store_index
from tfdist.errors import CorruptDataError, fields_of
from tfdist.storage.directory import Storage

_SAMPLE = 256


def put_index(
    place: Storage, shards: list[str], *, schema: Schema | None, label: str | None, old: Manifest | None = None
) -> Manifest:
    chosen, layout, found = _best(place, shards, schema)
    label = label_of(chosen, label)
    before = frozenset() if old is None else old.files
    revision = 1 if old is None else next_revision(old.revision, before)
    indices = {} if old is None else {shard.file: shard.index for shard in old.shards}
    finished = tuple(
        shard
        if rows is None
        else replace(shard, index=store_index_of(place, shard.file, rows, indices.get(shard.file), revision))
        for shard, rows in found
    )
    manifest = Manifest(schema=chosen, layout=layout, shards=finished, label=label, revision=revision)
    if old is not None and replace(manifest, revision=old.revision) == old:
        manifest = old
    with place.create(manifests.NAME) as file:
        file.write(manifest.to_bytes())
    for name in before - manifest.files - set(shards):  # last: a reader of the former manifest continues until then
        place.remove(name)
    return manifest


def store_index_of(place: Storage, shard: str, rows: Index, before: IndexFile | None, revision: int) -> IndexFile:
    """Write the index of a shard; a different earlier index keeps its file, which a reader may use."""
    data = rows.to_bytes()
    if before is None:
        name = index_name(shard)
    elif (before.bytes, before.crc32c) == (len(data), google_crc32c.value(data)):
        name = before.file
    else:
        name = revised(index_name(shard), revision)
    return store_index(place, shard, rows, name=name)


def described(
    place: Storage, shard: str, schema: Schema, layout: str, *, strict: bool = False
) -> tuple[Shard, Index | None]:
    """Return the manifest's entry of an existing shard, without its index, and the index."""
    content = Content(place, shard)
    contents = Contents(schema, layout, strict=strict)
    gathered, count, lengths = Gathered(schema, layout), 0, {0}
    payloads: list[bytes | None] = []  # of the first record, and of the last
    for batch in batches(walk(content)):
        rows = contents.of([found.payload or b"" for found in batch])
        for row, found in enumerate(batch):
            if problem := found.problem or rows.problems.get(row, ""):
                raise CorruptDataError(f"{shard}, byte {found.offset}, record {count + row}: {problem}.")
        gathered.add([found.offset for found in batch], rows.columns)
        count += len(batch)
        payloads = [*payloads[:1], batch[0].payload, batch[-1].payload]
        sizes = [found.size - record_framing.OVERHEAD_BYTES for found in batch]
        lengths = (lengths if count > len(batch) else set()) | {min(sizes), max(sizes)}
    is_known = payloads and payloads[0] is not None and payloads[-1] is not None
    about = Shard(
        file=shard,
        examples=count,
        bytes=content.size,
        crc32c=content.crc(),
        smallest=min(lengths),
        largest=max(lengths),
        ends=(record_framing.masked_crc(payloads[0]), record_framing.masked_crc(payloads[-1])) if is_known else None,
    )
    return about, None if layout == FIXED else gathered.index(content.size)


def _best(
    place: Storage, shards: list[str], schema: Schema | None
) -> tuple[Schema, str, list[tuple[Shard, Index | None]]]:
    """Return the schema and the best layout that fit all records, and a description of each shard."""
    error: CorruptDataError | None = None
    for chosen in _schemas(place, shards, schema):
        for layout in layouts(chosen):
            try:
                return chosen, layout, [described(place, s, chosen, layout, strict=schema is None) for s in shards]
            except CorruptDataError as unfit:
                error = unfit
    raise CorruptDataError(
        f"{error} Pass a schema that fits all records; or, where they are damaged, `tfdist data repair "
        f"--rebuild-manifest {place.url}` keeps those that are whole.",
        **fields_of(error),
    ) from error


def _schemas(place: Storage, shards: list[str], schema: Schema | None) -> Iterator[Schema]:
    """Yield possible schemas: the given one; or the one that the first records show, then the one that all show."""
    seen = looked_at(place, shards, most=_SAMPLE, context_alone=schema is not None)
    if schema is not None:
        yield seen.as_kept(schema)
        return
    few = seen.schema(place.url)
    yield few
    all_ = looked_at(place, shards).schema(place.url)
    if all_ != few:
        yield all_
