"""What a manifest would say of shards whose manifest is lost."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tfdist.data import manifest as manifests
from tfdist.data.examining import Place
from tfdist.data.indexing import layouts
from tfdist.data.inference import inferred
from tfdist.data.manifest import Shard
from tfdist.data.salvage import described
from tfdist.data.schema import Schema
from tfdist.data.shard_index import Index
from tfdist.data.storage import Storage
from tfdist.data.survey import Found
from tfdist.errors import TfdistError

_LARGEST_REVISION = 1 << 53


@dataclass(frozen=True)
class Rebuilt:
    """What the shards show.

    Attributes:
        schema: of the examples.
        layout: that all whole records have.
        label: the feature that is learnt.
        revision: the one that the lost manifest had, as far as that can be told.
        shards: what each is, its index, and whether something in it is no example.
        lost: what is no example.
        inferred: what was told from the records, in words.
    """

    schema: Schema
    layout: str
    label: str | None
    revision: int
    shards: tuple[tuple[Shard, Index | None, bool], ...]
    lost: tuple[Place, ...]
    inferred: tuple[str, ...]


def rebuilt(place: Storage, shards: list[str], schema: Schema | None) -> Rebuilt:
    """Return what a manifest would say of shards.

    Of the schemas that are given, still legible, or told from all records, and of their layouts, the first is taken
    that fits every record whose checksums fit; if none does, the last, without those that do not.

    Raises:
        ConfigError: the records do not agree what a feature is.
    """
    damaged = _legible(place)
    for chosen, said, is_last in _schemas(place, shards, schema, damaged):
        for layout in layouts(chosen):
            faults: dict[str, list[Found]] = {shard: [] for shard in shards}
            found = [described(place, shard, chosen, layout, accept=_keeper(faults[shard])) for shard in shards]
            is_unfit = any(fault.payload is not None for listed in faults.values() for fault in listed)
            if is_unfit and not (is_last and layout == layouts(chosen)[-1]):
                continue  # a record that is whole and does not fit: rather the schema or the layout is wrong
            label = damaged.get("label")
            return Rebuilt(
                schema=chosen,
                layout=layout,
                label=label if isinstance(label, str) and label in chosen else "label" if "label" in chosen else None,
                revision=_revision(damaged),
                shards=tuple((about, rows, bool(faults[about.file])) for about, rows in found),
                lost=tuple(
                    Place(shard, fault.offset, None, fault.problem, 1)
                    for shard, listed in faults.items()
                    for fault in listed
                ),
                inferred=(said, f"layout: {layout}"),
            )
    raise AssertionError("the last schema is always taken")


def _schemas(
    place: Storage, shards: list[str], given: Schema | None, damaged: dict[str, Any]
) -> Iterator[tuple[Schema, str, bool]]:
    if given is not None:
        yield given, "schema: as given", True
        return
    try:
        legible = Schema.from_json(damaged.get("schema"))
        yield legible, f"schema: as {manifests.NAME} still has it; all records fit it", False
    except TfdistError:
        pass
    found = inferred(place, shards)
    parts = ", ".join(f"{name} {feature.dtype}{list(feature.shape)}" for name, feature in found.items())
    yield found, f"schema: told from the records ({parts}); arrays that were stored as bytes are bytes now", True


def _keeper(faults: list[Found]) -> Callable[[Found], None]:
    """Return what keeps faults without their payloads, which may be large; that there was one is kept."""
    return lambda fault: faults.append(fault if fault.payload is None else fault._replace(payload=b""))


def _legible(place: Storage) -> dict[str, Any]:
    """Return what of a damaged manifest can be read; none of it is to be trusted."""
    if manifests.NAME not in place.names() or place.size(manifests.NAME) > manifests.LARGEST_BYTES:
        return {}
    try:
        found = json.loads(place.read(manifests.NAME))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _revision(damaged: dict[str, Any]) -> int:
    found = damaged.get("revision")
    return found if isinstance(found, int) and not isinstance(found, bool) and 1 <= found < _LARGEST_REVISION else 1
