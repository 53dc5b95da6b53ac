"""Rebuild a lost manifest from its shards."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist.data.format import data_manifest as manifests
from tfdist.data.format.contents import Contents
from tfdist.data.format.record_layout import layouts
from tfdist.data.format.reindex import batches
from tfdist.data.format.scan import Content, Found, walk
from tfdist.data.format.schema import Schema
from tfdist.data.sources.tfrecords.inference import looked_at
from tfdist.errors import TfdistError
from tfdist.storage.directory import Storage

_LARGEST_REVISION = 1 << 53


@dataclass(frozen=True)
class Inferred:
    """What the shards show.

    Attributes:
        schema: of the examples.
        layout: that all whole records have.
        label: the feature that is learnt.
        revision: the one that the lost manifest had, as far as that can be told.
        faults: of each shard, what is no example.
        said: what was told from the records, in words.
    """

    schema: Schema
    layout: str
    label: str | None
    revision: int
    faults: Mapping[str, Sequence[Found]]
    said: tuple[str, ...]


def inferred(place: Storage, shards: list[str], schema: Schema | None) -> Inferred:
    """Return what a manifest would say of shards.

    Of the schemas that are given, still legible, or told from all records, and of their layouts, the first is taken
    that fits every record whose checksums fit; if none does, the last, without those that do not.
    """
    legible = _legible(place)
    for chosen, said, is_last in _schemas(place, shards, schema, legible):
        for layout in layouts(chosen):
            faults = {shard: _faults(place, shard, chosen, layout) for shard in shards}
            is_unfit = any(fault.payload is not None for listed in faults.values() for fault in listed)
            if is_unfit and not (is_last and layout == layouts(chosen)[-1]):
                continue  # a record that is whole and does not fit: rather the schema or the layout is wrong
            label = legible.get("label")
            return Inferred(
                schema=chosen,
                layout=layout,
                label=label if isinstance(label, str) and label in chosen else "label" if "label" in chosen else None,
                revision=_revision(legible),
                faults=faults,
                said=(said, f"layout: {layout}"),
            )
    raise AssertionError("the last schema is always taken")


def _schemas(
    place: Storage, shards: list[str], given: Schema | None, legible: Mapping[str, Any]
) -> Iterator[tuple[Schema, str, bool]]:
    if given is not None:
        yield given, "schema: as given", True
        return
    try:
        found = Schema.from_json(legible.get("schema"))
        yield found, f"schema: as {manifests.NAME} still has it; all records fit it", False
    except TfdistError:
        pass
    found = looked_at(place, shards).schema(place.url)
    parts = ", ".join(f"{name} {feature.dtype}{list(feature.shape)}" for name, feature in found.items())
    yield found, f"schema: told from the records ({parts}); arrays that were stored as bytes are bytes now", True


def _faults(place: Storage, shard: str, schema: Schema, layout: str) -> list[Found]:
    """Return what in a shard is no example; of a record that is whole the payload is empty, as it may be large."""
    contents, faults = Contents(schema, layout), list[Found]()
    for batch in batches(walk(Content(place, shard))):
        problems = contents.of([found.payload or b"" for found in batch]).problems
        for row, found in enumerate(batch):
            if found.payload is None:
                faults.append(found)
            elif row in problems:
                faults.append(found._replace(payload=b"", problem=problems[row]))
    return faults


def _legible(place: Storage) -> dict[str, Any]:
    """Return what of a damaged manifest can be read; none of it is to be trusted."""
    if manifests.NAME not in place.names() or place.size(manifests.NAME) > manifests.LARGEST_BYTES:
        return {}
    try:
        found = json.loads(place.read(manifests.NAME))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _revision(legible: Mapping[str, Any]) -> int:
    found = legible.get("revision")
    return found if isinstance(found, int) and not isinstance(found, bool) and 1 <= found < _LARGEST_REVISION else 1
