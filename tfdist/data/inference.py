"""What examples consist of, told from examples that nobody described: their kinds, and how many values they have."""

from itertools import islice

from tfdist.data import example
from tfdist.data.schema import TEXT, Feature, Schema
from tfdist.data.storage import Storage
from tfdist.data.survey import Content, walk
from tfdist.errors import ConfigError, CorruptDataError

_DTYPES = {"bytes": TEXT, "float": "float32", "int64": "int64"}


def inferred(place: Storage, shards: list[str], *, most: int | None = None) -> Schema:
    """Return the schema that the whole records of shards show.

    A feature with one value in each is a single value; with as many in each, an array; else a list of any length. What
    was an array of bytes is told as bytes: records do not say it.

    Args:
        place: the directory.
        shards: its files.
        most: look at so many records of the first shard that has any, None: at all of all.
    Raises:
        ConfigError: there is no record, or records do not agree what a feature is.
    """
    seen = _Seen()
    for shard in shards:
        for found in islice(walk(Content(place, shard)), most):
            if found.payload is not None:
                seen.add(found.payload, shard)
        if most is not None and seen.count:
            break
    return seen.schema(place.url)


class _Seen:
    """Kinds and numbers of values of each feature so far."""

    def __init__(self) -> None:
        self.count = 0
        self._kinds: dict[str, str] = {}
        self._sizes: dict[str, set[int]] = {}
        self._present: dict[str, int] = {}

    def add(self, payload: bytes, shard: str) -> None:
        try:
            parsed = example.parse(payload)
        except CorruptDataError:
            return
        self.count += 1
        for name, (kind, values) in parsed.items():
            known = self._kinds.setdefault(name, kind) or kind
            if kind and kind != known:
                raise ConfigError(
                    f"feature {name!r} has {known} in some records and {kind} in a record of {shard}. Every record "
                    "must have the same features; write those of one kind into a directory of their own."
                )
            self._kinds[name] = known
            sizes = self._sizes.setdefault(name, set())
            if len(sizes) < 2:
                sizes.add(len(values))
            self._present[name] = self._present.get(name, 0) + 1
        if len(self._kinds) > 10_000:
            raise ConfigError(f"the records of {shard} have more than 10000 features; they are no table of examples.")

    def schema(self, url: str) -> Schema:
        if not self.count:
            raise ConfigError(f"{url} has no record that is a tf.train.Example; at least one is needed.")
        features = {}
        for name, kind in self._kinds.items():
            if not kind:
                raise ConfigError(f"feature {name!r} has no values in any record. Pass a schema that says what it is.")
            sizes = self._sizes[name] | (set() if self._present[name] == self.count else {0})
            size = sizes.pop() if len(sizes) == 1 else None
            features[name] = Feature(_DTYPES[kind], () if size == 1 else (size,))
        if not features:
            raise ConfigError(f"the records of {url} have no features; they must be tf.train.Example.")
        return Schema(features)
