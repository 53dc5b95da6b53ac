"""Infer a schema from undescribed examples: kinds of values and their number."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice

from tfdist.data.format import example
from tfdist.data.format.picture_decoding import KEPT, format_of
from tfdist.data.format.scan import Content, walk
from tfdist.data.format.schema import MOST_FEATURES, TEXT, Feature, Schema, encodings_of
from tfdist.data.sources.tfrecords.sequence_examples import Parsed, need_one_example
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import Storage

_DTYPES = {"bytes": TEXT, "float": "float32", "int64": "int64"}
_PICTURES = (*KEPT, "WebP")  # which nothing else begins like


def looked_at(place: Storage, shards: list[str], *, most: int | None = None, context_alone: bool = False) -> "Seen":
    """Return what the whole records of shards show."""
    seen = Seen()
    for shard in shards:
        for index, found in enumerate(islice(walk(Content(place, shard)), most)):
            if found.payload is not None:
                need_one_example(found.payload, f"record {index} of {shard}")
                try:
                    parsed, lists = example.parse(found.payload), example.sequences(found.payload)
                except CorruptDataError:
                    continue
                if lists and not context_alone:
                    raise ConfigError(
                        f"{shard} has a tf.train.SequenceExample, whose feature list {min(lists)!r} no reader of "
                        "tf.train.Example sees. `tfdist data write SOURCE DIRECTORY` makes features of its lists; pass "
                        "a schema of the context alone (`tfdist data index --schema`) to go without them.",
                        name=min(lists),
                        path=shard,
                    )
                seen.add(parsed, shard)
        if most is not None and seen.count:
            break
    return seen


def as_kept(feature: Feature, kind: str) -> Feature:
    """Return a feature that says an array's dtype and shape as records keep it: as the bytes of one, or as a list.

    Example:
        >>> as_kept(Feature("int64", (3,)), "int64").encoding, as_kept(Feature("int64", (3,)), "bytes").encoding
        ('int64', 'raw')
    """
    if feature.encoding == "raw" and kind in encodings_of(feature.dtype):
        return replace(feature, encoding=kind)
    return feature


class Seen:
    """Kinds and numbers of values of each feature so far.

    A feature list of a sequence is a list of any length, or an array of the shape (steps, values). Any other
    feature with one value in each record is a single value; with as many in each, an array; else, or where some
    records do not have it, a list of any length. One that has no value in any record is left out. What was an array of
    bytes is told as bytes: records do not say it. Bytes that all begin like pictures are pictures.

    Example:
        >>> seen = Seen()
        >>> ids = Feature("int64", (3,), "int64")
        >>> payload = example.joined([example.entry("ids", ids, example.content_of(ids, [7, 8, 9]))])
        >>> seen.add(example.parse(payload), "a.tfrecord")
        >>> seen.schema("a.tfrecord")["ids"] == ids
        True
    """

    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[str, str] = {}
        self._sizes: dict[str, set[int]] = {}
        self._present: dict[str, int] = {}
        self._no_pictures: set[str] = set()
        self._lists: dict[str, set[tuple[int, int]]] = {}

    def add(self, parsed: Parsed, file: str, lists: Mapping[str, tuple[int, int]] | None = None) -> None:
        """Look at a record."""
        for name, shape in (lists or {}).items():
            self._lists.setdefault(name, set()).add(shape)
        self.count += 1
        for name, (kind, values) in parsed.items():
            known = self._kinds.setdefault(name, kind) or kind
            if kind and kind != known:
                raise ConfigError(
                    f"feature {name!r} has {known} in some records and {kind} in a record of {file}. Every record "
                    "must have the same features; write those of one kind into a directory of their own.",
                    name=name,
                    received=kind,
                    path=file,
                )
            self._kinds[name] = known
            sizes = self._sizes.setdefault(name, set())
            if len(sizes) < 2:
                sizes.add(len(values))
            self._present[name] = self._present.get(name, 0) + 1
            if known == "bytes" and name not in self._no_pictures and not _are_pictures(values):
                self._no_pictures.add(name)
        if len(self._kinds) > MOST_FEATURES:
            raise ConfigError(f"the records of {file} have more than {MOST_FEATURES} features; they are no examples.")

    def as_kept(self, schema: Schema) -> Schema:
        """Return a schema that somebody wrote down, as the records keep it; see `as_kept`."""
        return Schema({name: as_kept(feature, self._kinds.get(name, "")) for name, feature in schema.items()})

    def schema(self, where: str) -> Schema:
        """Return what all records have in common."""
        if not self.count:
            raise ConfigError(f"{where} has no record that is a tf.train.Example; at least one is needed.", path=where)
        features = {name: self._feature(name, kind) for name, kind in self._kinds.items() if kind}
        if not features:
            raise ConfigError(f"the records of {where} have no features; they must be tf.train.Example.")
        return Schema(features)

    def _feature(self, name: str, kind: str) -> Feature:
        sizes = self._sizes[name] | (set() if self._present[name] == self.count else {0})
        size = max(sizes) if len(sizes) == 1 else 0
        shape = self._shape_of_list(name) if name in self._lists else () if size == 1 else (size or None,)
        is_image = kind == "bytes" and name not in self._no_pictures and sizes != {0}
        return Feature(_DTYPES[kind], shape, kind, is_image=is_image)

    def _shape_of_list(self, name: str) -> tuple[int | None, ...]:
        """Return (None,) for steps of one value, else the shape that a feature list has in all records."""
        shapes = self._lists[name]
        if all(values == 1 for _, values in shapes):
            return (None,)
        if len(shapes) > 1 or self._present[name] < self.count:
            raise ConfigError(
                f"the feature list {name!r} has steps of several values, and records have different numbers of them: "
                f"{', '.join(f'{steps} of {values}' for steps, values in sorted(shapes)[:5])}. Pass a schema that "
                "names it: the shape (None,) has the values of all steps one after the other.",
                name=name,
            )
        return next(iter(shapes))


def _are_pictures(values: list[bytes]) -> bool:
    return all(format_of(value) in _PICTURES for value in values)
