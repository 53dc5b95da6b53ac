"""The manifest of a directory of examples: schema, shards, sizes, checksums. Written last, checked when read."""

import dataclasses
import functools
import glob
import hashlib
import json
import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from tfdist import validation
from tfdist.data.format import splits
from tfdist.data.format.example import template_bytes
from tfdist.data.format.record_framing import OVERHEAD_BYTES
from tfdist.data.format.revisions import made_in, written_in
from tfdist.data.format.schema import FIXED, GENERIC, LAYOUTS, Schema, layout_of
from tfdist.errors import ConfigError, CorruptDataError, DataChangedError, MissingFileError, fields_of
from tfdist.storage.directory import Storage
from tfdist.storage.files import parsed_manifest, plain_name

NAME = "manifest.json"
FORMAT = "tfdist.data"
VERSION = 2
_VERSION_WITHOUT_ENDS = 1  # of earlier releases, and still of directories that have nothing that these did not know
LARGEST_BYTES = 256 << 20
_MOST = 1 << 62
_MOST_WITHOUT_EXAMPLES = 1 << 20
_NAMES = {"format", "version", "revision", "layout", "label", "schema", "shards", "digest"}
_FIELDS = {_VERSION_WITHOUT_ENDS: _NAMES, VERSION: _NAMES}


@dataclass(frozen=True, kw_only=True)
class IndexFile:
    """The index file of a shard: its name, its size in bytes and its CRC-32C."""

    file: str
    bytes: int
    crc32c: int


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One TFRecord file; `crc32c` is of the whole file and not masked, `index` is None for the fixed layout.

    `ends` has the checksums of the first and last payload as the file stores them, which tell it from others of its
    size. It is None if there is no record, or if an earlier release described the shard.
    """

    file: str
    examples: int
    bytes: int
    crc32c: int
    smallest: int
    largest: int
    index: IndexFile | None = None
    ends: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a directory of examples.

    Attributes:
        schema: the features of an example.
        layout: the way in which examples are read; see `tfdist.data.format.schema`.
        shards: the shards, in the order of their examples.
        label: the feature to learn; None if there is none.
        revision: 1 as written; each repair, each overwriting and each appending makes the next.
    """

    schema: Schema
    layout: str
    shards: tuple[Shard, ...]
    label: str | None = None
    revision: int = 1

    @functools.cached_property
    def examples(self) -> int:
        """The number of examples."""
        return sum(shard.examples for shard in self.shards)

    @functools.cached_property
    def total_bytes(self) -> int:
        """The size of all shards in bytes."""
        return sum(shard.bytes for shard in self.shards)

    @functools.cached_property
    def files(self) -> frozenset[str]:
        """The names of all shards and indices."""
        indices = (shard.index.file for shard in self.shards if shard.index)
        return frozenset([*(shard.file for shard in self.shards), *indices])

    @functools.cached_property
    def digest(self) -> str:
        """32 hexadecimal digits that differ when the examples do."""
        return hashlib.sha256(json.dumps(self._json(), sort_keys=True).encode()).hexdigest()[:32]

    def begins_with(self, other: "Manifest") -> bool:
        """Return whether the directory begins with all examples of another manifest."""
        alike = (self.schema, self.layout, self.label) == (other.schema, other.layout, other.label)
        return self.digest == other.digest or (alike and self.shards[: len(other.shards)] == other.shards)

    def generations(self) -> Iterator["Manifest"]:
        """Yield the manifest of the directory, then the one before each appending, the newest first."""
        yield self
        for count in range(len(self.shards) - 1, 0, -1):
            before, behind = (written_in(self.shards[place].file) for place in (count - 1, count))
            if behind is not None and (before or 0) < behind:
                kept = dataclasses.replace(self, shards=self.shards[:count])
                yield dataclasses.replace(kept, revision=made_in(kept.files))

    def to_bytes(self) -> bytes:
        """Return the JSON that `from_bytes` reads.

        Raises:
            ConfigError: it is larger than what is read.
        """
        data = json.dumps({**self._json(), "digest": self.digest}, indent=1, ensure_ascii=False).encode() + b"\n"
        if len(data) > LARGEST_BYTES:
            raise ConfigError(
                f"{NAME} of {len(self.shards)} shards would have {len(data)} bytes; at most {LARGEST_BYTES} are read. "
                "Make fewer and larger shards: num_shards or shard_bytes (--num-shards, --shard-bytes).",
                name="shards",
                received=len(self.shards),
            )
        return data

    @property
    def _version(self) -> int:
        return VERSION if any(shard.ends for shard in self.shards) else _VERSION_WITHOUT_ENDS

    def _json(self) -> dict[str, Any]:
        shards = [dataclasses.asdict(shard) for shard in self.shards]
        if self._version == _VERSION_WITHOUT_ENDS:
            for shard in shards:
                del shard["ends"]
        return {
            "format": FORMAT,
            "version": self._version,
            "revision": self.revision,
            "layout": self.layout,
            "label": self.label,
            "schema": self.schema.to_json(),
            "shards": shards,
        }

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        """Return the manifest that `to_bytes` wrote, with every field checked.

        Raises:
            CorruptDataError: the data are not a manifest, contradict themselves, or were changed by hand.
        """
        try:
            return _read(data)
        except ConfigError as error:
            raise CorruptDataError(f"{NAME} cannot be used: {error}", **{"path": NAME} | fields_of(error)) from error


def has_manifest(place: Storage) -> bool:
    """Return whether a storage has a manifest; the storage of a single file has none."""
    is_file = place.local is not None and place.local.is_file()
    return not is_file and NAME in place.names()


def read_manifest(place: Storage) -> Manifest:
    names = place.names()
    if NAME not in names:
        folders = () if place.local is None else place.local.glob(f"[!.]*/{NAME}")
        if inner := splits.ordered(path.parent.name for path in folders):  # splits that were written at once
            raise ConfigError(
                f"{place.url} has no {NAME}, but {', '.join(inner)} in it have. Pass one: "
                f"{place.url.rstrip('/')}/{inner[0]}",
                name=NAME,
                path=place.url,
            )
        raise ConfigError(
            f"{place.url} {_without_manifest(place, names)}. Pass a directory that `tfdist data write SOURCE "
            "DIRECTORY` has finished; of TFRecord files that are there already, `tfdist data index` makes one.",
            name=NAME,
            path=place.url,
        )
    size = place.size(NAME)
    if size > LARGEST_BYTES:
        raise CorruptDataError(
            f"{NAME} has {size} bytes; at most {LARGEST_BYTES} are read.", name=NAME, received=size, path=place.url
        )
    return Manifest.from_bytes(place.read(NAME))  # whole, although an appending may just have made it longer


def require_folder(place: Storage) -> None:
    """Refuse a local path that is no folder, before a lock in it makes it."""
    if place.local is not None and place.local.is_file():
        raise ConfigError(
            f"{place.url} is a file. Pass the folder of a directory that `tfdist data write` or `index` made.",
            name="directory",
            path=place.url,
        )
    if place.local is not None and not place.local.exists():
        raise ConfigError(
            f"{place.url} {_without_manifest(place, ())}. Check the path; relative ones begin at {os.getcwd()}.",
            name="directory",
            path=place.url,
        )


def _without_manifest(place: Storage, names: Collection[str]) -> str:
    """Return what a place without a manifest is, for an error."""
    if names:
        return f"has {len(names)} files but no {NAME}"
    if place.local is None:
        return "has no file"
    if place.local.exists():
        return "has no file in it"
    if glob.has_magic(str(place.local)):
        return "matches no file"
    above = place.local.parent
    return f"does not exist, but {above} is a directory of tfdist" if (above / NAME).is_file() else "does not exist"


def _read(data: bytes) -> Manifest:
    found = parsed_manifest(data, FORMAT, _FIELDS, largest=LARGEST_BYTES)
    schema = Schema.from_json(found["schema"])
    layout = validation.one_of("layout", found["layout"], LAYOUTS)
    label = found["label"]
    if label is not None and (not isinstance(label, str) or label not in schema):
        raise validation.mismatch("label", label, f"one of {', '.join(schema)}.")
    if not isinstance(found["shards"], list):
        raise ConfigError("shards must be a list.")
    has_ends = found["version"] != _VERSION_WITHOUT_ENDS
    shards = tuple(_shard(layout, place, value, has_ends) for place, value in enumerate(found["shards"]))
    names = [shard.file for shard in shards] + [shard.index.file for shard in shards if shard.index]
    if len(set(names)) < len(names):
        raise ConfigError("two of its files have the same name.")
    revision = validation.integer("revision", found["revision"], minimum=1, maximum=_MOST)
    manifest = Manifest(schema=schema, layout=layout, shards=shards, label=label, revision=revision)
    if layout not in (layout_of(schema), GENERIC):
        raise ConfigError(f"its layout is {layout}, which its schema does not allow.", name="layout", received=layout)
    if layout == FIXED:
        _check_fixed(schema, shards)
    if found["digest"] != manifest.digest:
        raise ConfigError("its digest does not fit the rest of it: it was changed, or damaged.", name="digest")
    return manifest


def _check_fixed(schema: Schema, shards: tuple[Shard, ...]) -> None:
    """Refuse records whose size does not follow from the schema: a template takes as much memory as one record."""
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


def _shard(layout: str, place: int, value: Any, has_ends: bool) -> Shard:
    fields = {field.name for field in dataclasses.fields(Shard)} - (set() if has_ends else {"ends"})
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
    if not numbers["examples"] and value.get("ends") is not None:
        raise ConfigError(f"shard {place} has no examples, and ends.")
    index = value["index"]
    if (index is None) != (layout == FIXED):
        raise ConfigError(f"shard {place} has {'no' if index is None else 'an'} index with the layout {layout}.")
    return Shard(
        file=_file(value["file"]),
        index=None if index is None else _index(place, index),
        ends=_ends(place, value.get("ends")),
        **numbers,
    )


def _ends(place: int, value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2:
        raise validation.mismatch(f"ends of shard {place}", value, "two checksums.")
    first, last = (validation.integer(f"ends of shard {place}", end, minimum=0, maximum=2**32 - 1) for end in value)
    return first, last


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


def require_manifest(place: Storage, opened: Manifest) -> None:
    """Raise if files may have been replaced: if the manifest is not the opened one, even with examples appended."""
    try:
        found = read_manifest(place)
        now = f"its revision is {found.revision} with digest {found.digest}"
    except (MissingFileError, ConfigError, CorruptDataError):
        found, now = None, f"it has no {NAME} that can be read"
    if found is None or not found.begins_with(opened):
        raise DataChangedError(
            f"{place.url} was written anew, repaired or removed while it was read: {now}, and this reader opened "
            f"revision {opened.revision} with digest {opened.digest}. Read it again to have what is there now, without "
            "a state of before; to write while others read, choose another directory.",
            path=place.url,
        )
