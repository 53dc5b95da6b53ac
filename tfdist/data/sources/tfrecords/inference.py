"""Infer a schema from records: kinds and numbers of the values in a tf.train.Example or tf.train.SequenceExample.

The context of a sequence stays as it is; a feature list becomes a list of its steps' values. A schema's lists have one
dimension, so each step must have one value. Steps of several are an array of the shape (steps, values) if all records
have as many, or flat with the shape (None,) if a schema asks for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from tfdist.data.format import example
from tfdist.data.format.picture_decoding import KEPT, format_of
from tfdist.data.format.record_framing import Content, walk
from tfdist.data.format.schema import MOST_FEATURES, TEXT, Feature, Schema, encodings_of
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.storage.directory import Storage

Parsed = dict[str, tuple[str, list[Any]]]
_DTYPES = {"bytes": TEXT, "float": "float32", "int64": "int64"}
_PICTURES = (*KEPT, "WebP")  # which nothing else begins like


def parsed(payload: bytes, schema: Mapping[str, Feature] | None = None, *, tells: bool = False) -> Parsed:
    """Return the features of an example or a sequence, as `example.parse` returns them."""
    found = example.parse(payload)
    for name, steps in example.sequences(payload).items():
        if name in found:
            raise ConfigError(
                f"{name!r} is in the context of the sequence and one of its feature lists; rename one.", name=name
            )
        kinds = {kind for kind, _ in steps if kind}
        if len(kinds) > 1:
            raise ConfigError(
                f"the feature list {name!r} has steps of {' and of '.join(sorted(kinds))}.",
                name=name,
                received=" and ".join(sorted(kinds)),
            )
        sizes = [len(values) for _, values in steps]
        if not (tells and len(set(sizes)) == 1):
            _check(name, sizes, schema.get(name) if schema else None)
        found[name] = (kinds.pop() if kinds else "", [value for _, values in steps for value in values])
    return found


def shape_of(steps: Sequence[tuple[str, Sequence[Any]]]) -> tuple[int, int]:
    """Return the number of steps of a feature list, and the number of values in each step, which must be the same."""
    return len(steps), len(steps[0][1]) if steps else 1


def need_one_example(payload: bytes, where: str) -> None:
    """Refuse a record that is a list of examples."""
    if example.lists_examples(payload):
        raise ConfigError(
            f"{where} is an ExampleListWithContext, as TensorFlow Ranking writes them: a list of examples in each "
            "record. Write each list as one tf.train.Example, whose features are lists of any length, or each example "
            "of a list as a record of its own, with the number of its list as a feature.",
            name="ExampleListWithContext",
        )


def _check(name: str, sizes: list[int], feature: Feature | None) -> None:
    alike = set(sizes)
    if alike <= {1}:
        return
    if len(alike) > 1 or not feature:
        way = (
            "Pass a schema that names it: the shape (None,) has the values of all steps one after the other, (steps, "
            "values) an array."
            if len(alike) == 1
            else "Where a step ends would be lost: write its values and their numbers as two features."
        )
        shown = ", ".join(map(str, sorted(alike)[:5])) + (", ..." if len(alike) > 5 else "")
        raise ConfigError(
            f"the feature list {name!r} has steps of {shown} values, and a list has one per step. " + way,
            name=name,
            received=sorted(alike),
        )
    if feature.shape not in ((None,), (len(sizes), sizes[0])):
        raise ConfigError(
            f"the feature list {name!r} has {len(sizes)} steps of {sizes[0]} values; the schema has the shape "
            f"{feature.shape}.",
            name=name,
            received=(len(sizes), sizes[0]),
        )


def looked_at(place: Storage, shards: list[str], *, most: int | None = None, context_alone: bool = False) -> "Seen":
    """Return the features that the whole records of shards show."""
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
                        "tf.train.Example sees. Pass records='sequences' to tfdist.data.read; or write them anew by "
                        "`tfdist data write SOURCE DIRECTORY`, which makes features of lists. `tfdist data index "
                        "--schema`, with a schema of the context alone, goes without them.",
                        name=min(lists),
                        path=shard,
                    )
                seen.add(parsed, shard)
        if most is not None and seen.count:
            break
    return seen


def as_kept(feature: Feature, kind: str) -> Feature:
    """Return a feature as records store it: as the bytes of an array, or as a list."""
    if feature.encoding == "raw" and kind in encodings_of(feature.dtype):
        return replace(feature, encoding=kind)
    return feature


class Seen:
    """The kinds and numbers of values of each feature so far.

    A feature list of a sequence is a list of any length, or an array of the shape (steps, values). Any other feature
    with one value in each record is a single value; with a constant number, an array; else, or if some records lack it,
    a list of any length. A feature without any value is left out. Arrays that are stored as bytes count as bytes,
    because records do not state a dtype. Bytes that all begin like pictures are pictures.
    """

    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[str, str] = {}
        self._sizes: dict[str, set[int]] = {}
        self._present: dict[str, int] = {}
        self._no_pictures: set[str] = set()
        self._lists: dict[str, set[tuple[int, int]]] = {}

    def add(self, parsed: Parsed, file: str, lists: Mapping[str, tuple[int, int]] | None = None) -> None:
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
            if (
                known == "bytes"
                and name not in self._no_pictures
                and any(format_of(value) not in _PICTURES for value in values)
            ):
                self._no_pictures.add(name)
        if len(self._kinds) > MOST_FEATURES:
            raise ConfigError(f"the records of {file} have more than {MOST_FEATURES} features; they are no examples.")

    def as_kept(self, schema: Schema) -> Schema:
        """Return a user's schema as the records store it; see the function `as_kept`."""
        return Schema({name: as_kept(feature, self._kinds.get(name, "")) for name, feature in schema.items()})

    def schema(self, where: str) -> Schema:
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
