"""What a directory of examples holds: schema, shards, sizes, checksums. Written last, and read as a stranger's.

Example:
    >>> from tfdist.data.schema import Feature
    >>> shard = Shard(file="data-00000.tfrecord", examples=2, bytes=90, crc32c=7, smallest=29, largest=29)
    >>> manifest = Manifest(schema=Schema({"x": Feature("float64", (2,))}), layout="fixed", shards=(shard,))
    >>> Manifest.from_bytes(manifest.to_bytes()) == manifest
    True
"""

import dataclasses
import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from tfdist import validation
from tfdist.data.example import template_bytes
from tfdist.data.filenames import plain_name
from tfdist.data.layout import FIXED, GENERIC, LAYOUTS, layout_of
from tfdist.data.records import OVERHEAD_BYTES
from tfdist.data.schema import Schema
from tfdist.errors import ConfigError, CorruptDataError

NAME = "manifest.json"
FORMAT = "tfdist.data"
VERSION = 1
LARGEST_BYTES = 256 << 20
_MOST = 1 << 62
_MOST_WITHOUT_EXAMPLES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """The index of a shard: a safetensors file, its bytes and their CRC-32C."""

    file: str
    bytes: int
    crc32c: int


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file.

    Attributes:
        file: its plain name in the directory.
        examples: records in it.
        bytes: of the file.
        crc32c: CRC-32C of the whole file, not masked.
        smallest, largest: bytes of its shortest and longest payload.
        index: None for the fixed layout.
    """

    file: str
    examples: int
    bytes: int
    crc32c: int
    smallest: int
    largest: int
    index: IndexFile | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a directory of examples.

    Attributes:
        schema: what an example consists of.
        layout: how it can be read, see `tfdist.data.layout`.
        shards: in the order of their examples.
        label: the feature that is learnt, None if there is none.
        revision: 1 as written; each repair makes the next.
    """

    schema: Schema
    layout: str
    shards: tuple[Shard, ...]
    label: str | None = None
    revision: int = 1

    @functools.cached_property
    def examples(self) -> int:
        """Number of examples."""
        return sum(shard.examples for shard in self.shards)

    @functools.cached_property
    def total_bytes(self) -> int:
        """Bytes of all shards."""
        return sum(shard.bytes for shard in self.shards)

    @functools.cached_property
    def digest(self) -> str:
        """32 hexadecimal digits that differ when the examples do."""
        return hashlib.sha256(json.dumps(self._json(), sort_keys=True).encode()).hexdigest()[:32]

    def to_bytes(self) -> bytes:
        """Return the JSON that `from_bytes` reads."""
        return json.dumps({**self._json(), "digest": self.digest}, indent=1, ensure_ascii=False).encode() + b"\n"

    def _json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "revision": self.revision,
            "layout": self.layout,
            "label": self.label,
            "schema": self.schema.to_json(),
            "shards": [dataclasses.asdict(shard) for shard in self.shards],
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Return the manifest that `to_bytes` wrote, with every field checked.

        Raises:
            CorruptDataError: it is none, contradicts itself, or was changed by hand.
        """
        try:
            return _read(data)
        except ConfigError as error:
            raise CorruptDataError(f"{NAME} cannot be used: {error}") from error


def _read(data: bytes) -> Manifest:
    if len(data) > LARGEST_BYTES:
        raise ConfigError(f"it has {len(data)} bytes; at most {LARGEST_BYTES} are read.")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"it is no JSON ({error}).") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise ConfigError(f'it has no "format": "{FORMAT}", so it describes something else.')
    if found.get("version") != VERSION:
        raise ConfigError(
            f"it has version {validation.shown(found.get('version'))} of the format; this tfdist reads version "
            f"{VERSION}. Install the tfdist that wrote it, or a later one."
        )
    known = {"format", "version", "revision", "layout", "label", "schema", "shards", "digest"}
    if set(found) != known:
        raise ConfigError(f"its fields are {sorted(found)}; they must be {sorted(known)}.")
    schema = Schema.from_json(found["schema"])
    layout = validation.one_of("layout", found["layout"], LAYOUTS)
    label = found["label"]
    if label is not None and (not isinstance(label, str) or label not in schema):
        raise ConfigError(f"label is {validation.shown(label)}; it must be one of {', '.join(schema)}.")
    if not isinstance(found["shards"], list):
        raise ConfigError("shards must be a list.")
    shards = tuple(_shard(layout, place, value) for place, value in enumerate(found["shards"]))
    names = [shard.file for shard in shards] + [shard.index.file for shard in shards if shard.index]
    if len(set(names)) < len(names):
        raise ConfigError("two of its files have the same name.")
    revision = validation.integer("revision", found["revision"], minimum=1, maximum=_MOST)
    manifest = Manifest(schema=schema, layout=layout, shards=shards, label=label, revision=revision)
    if layout not in (layout_of(schema), GENERIC):
        raise ConfigError(f"its layout is {layout}, which its schema does not allow.")
    if layout == FIXED:
        _check_fixed(schema, shards)
    if found["digest"] != manifest.digest:
        raise ConfigError("its digest does not fit the rest of it: it was changed, or damaged.")
    return manifest


def _check_fixed(schema: Schema, shards: tuple[Shard, ...]) -> None:
    """Refuse records that the schema does not make: whoever makes its template needs as much memory as one takes."""
    length = template_bytes(schema)
    for shard in shards:
        if shard.examples and (shard.smallest, shard.largest) != (length, length):
            raise ConfigError(
                f"{shard.file} has examples of {shard.smallest} to {shard.largest} bytes; its schema's have {length}."
            )
        if shard.bytes != shard.examples * (length + OVERHEAD_BYTES):
            raise ConfigError(f"{shard.file} has {shard.bytes} bytes, which {shard.examples} examples do not take.")
    if length > _MOST_WITHOUT_EXAMPLES and not any(shard.examples for shard in shards):
        raise ConfigError(f"its examples would have {length} bytes, and there is none.")


def _shard(layout: str, place: int, value: Any) -> Shard:
    fields = {field.name for field in dataclasses.fields(Shard)}
    if not isinstance(value, dict) or set(value) != fields:
        raise ConfigError(f"shard {place} is {validation.shown(value)}; it must have {sorted(fields)}.")
    numbers = {
        name: validation.integer(f"{name} of shard {place}", value[name], minimum=0, maximum=_MOST)
        for name in ("examples", "bytes", "crc32c", "smallest", "largest")
    }
    if not numbers["smallest"] <= numbers["largest"] <= max(0, numbers["bytes"] - OVERHEAD_BYTES):
        raise ConfigError(f"shard {place} has records of {numbers['largest']} bytes in {numbers['bytes']}.")
    if numbers["examples"] * (numbers["smallest"] + OVERHEAD_BYTES) > numbers["bytes"]:
        raise ConfigError(f"shard {place} has {numbers['examples']} examples in {numbers['bytes']} bytes.")
    index = value["index"]
    if (index is None) != (layout == FIXED):
        raise ConfigError(f"shard {place} has {'no' if index is None else 'an'} index with the layout {layout}.")
    return Shard(
        file=_file(value["file"]),
        index=None if index is None else _index(place, index),
        **numbers,
    )


def _file(name: Any) -> str:
    if plain_name(name) == NAME:
        raise ConfigError(f"a shard has the name {NAME}, which is the manifest's.")
    return plain_name(name)


def _index(place: int, value: Any) -> IndexFile:
    if not isinstance(value, dict) or set(value) != {"file", "bytes", "crc32c"}:
        raise ConfigError(f"the index of shard {place} is {validation.shown(value)}; it must have file, bytes, crc32c.")
    return IndexFile(
        file=_file(value["file"]),
        bytes=validation.integer("bytes of an index", value["bytes"], minimum=0, maximum=_MOST),
        crc32c=validation.integer("crc32c of an index", value["crc32c"], minimum=0, maximum=2**32 - 1),
    )
