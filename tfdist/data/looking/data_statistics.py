"""Statistics of all examples of a directory, in one pass that keeps no examples. No TensorFlow."""

import itertools
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.fetch import PAYLOAD
from tfdist.data.examples.joined_columns import ColumnFetcher
from tfdist.data.format import example
from tfdist.data.format.schema import TEXT, Schema
from tfdist.data.looking.feature_tallies import FeatureStats, FeatureTally, LabelTally, keys_of, pieces_of, taken
from tfdist.data.looking.hash_samples import HashSample, hashes, shared
from tfdist.data.looking.moments import Moments, merged
from tfdist.data.looking.shown_values import plain
from tfdist.data.order.epoch_orders import Permutation
from tfdist.data.reading.view import Source, View, fetcher_of, view_of
from tfdist.errors import ConfigError, CorruptDataError

MOST_CONTENTS = 1 << 20  # different examples that are told apart exactly
_MOST_PAIRS = 20  # of equal examples that are listed
_MOST_CORRUPT = 1000  # examples that are listed
_MOST_SKEWS = 1 << 22  # counts, one for each label in each shard
_SAMPLED = 10_000  # examples whose values a histogram has
_STEP = 4096  # examples that are read in one go, at most
_STEP_BYTES = 16 << 20
_NULL_MASK = "_is_null"

Progress = Callable[[int, int], None]
_Ids = NDArray[np.int64]
_Columns = dict[str, Any]


@dataclass(frozen=True)
class ShardStats:
    """The differences between a shard and the whole.

    Attributes:
        file: the shard's name.
        examples: the number of its examples.
        skew: the share of its examples that would need another label to have the labels of the whole; None without
            labels.
        shift: the distance between the shard's mean of a feature and the mean of all, in standard deviations of all;
            for the feature with the largest distance.
        shifted: the feature of ``shift``; None if no feature is a number.
    """

    file: str
    examples: int
    skew: float | None
    shift: float
    shifted: str | None


@dataclass(frozen=True)
class Repeats:
    """Examples that are equal in some features.

    Attributes:
        features: the features in which examples are compared.
        examples: the number of examples that equal an earlier one, or one of the other directory.
        unlike_labels: the number of different contents that occur with several labels.
        pairs: some pairs of numbers: of two equal examples, or of one of the other directory and its equal in this one.
        error: the relative standard error of the number of contents that were compared; 0 if all were.
    """

    features: tuple[str, ...]
    examples: int
    unlike_labels: int
    pairs: tuple[tuple[int, int], ...]
    error: float


@dataclass(frozen=True)
class Stats:
    """The statistics of a directory.

    Attributes:
        url: the directory.
        examples: the number of examples.
        corrupt: the numbers of the corrupt examples, which count nowhere; if there are very many, the first ones.
        features: the statistics of each feature, by name.
        label: the name of the label.
        labels: class (its name, if it has one, else its value) -> number of examples; None without a label that has
            classes.
        shards: the differences between each shard and the whole.
        duplicates: the examples that equal others of this directory.
        overlap: the examples of the other directory that occur in this one; None without another directory.
        samples: values for histograms: up to 16 numbers of each of 10,000 random examples, or the lengths of texts.
    """

    url: str
    examples: int
    corrupt: tuple[int, ...]
    features: Mapping[str, FeatureStats]
    label: str | None
    labels: Mapping[str, int] | None
    shards: tuple[ShardStats, ...]
    duplicates: Repeats
    overlap: Repeats | None
    samples: Mapping[str, NDArray[np.float64]]

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as JSON for programs, without the samples; an infinite number becomes a text."""
        found = asdict(self)
        del found["samples"]
        for one in found["features"].values():
            one.update({key: plain(value) for key, value in one.items()})
        return found

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw histograms of the features and counts of the labels into a file, whose extension sets the format.

        Args:
            path: the path of the file; it ends with .png, .svg, .pdf or .html.
        Raises:
            MissingDependencyError: Matplotlib is missing.
            ConfigError: the extension is not one of these.
        """
        from tfdist.data.looking.statistics_drawing import draw

        draw(self, path)


def stats(
    directory: Source,
    *,
    against: Source | None = None,
    label: str | None = None,
    content: Sequence[str] = (),
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
    records: str = "examples",
) -> Stats:
    """Return statistics of all examples, from one pass that keeps none of them.

    Counts, extremes, means and deviations are exact. Up to 65,536 different values of a feature and 1,048,576 different
    examples are told apart by hashes of 128 bits; of more, a part is compared, and numbers of different, equal and
    shared values are estimates with an error.

    Args:
        directory: the examples; anything that `tfdist.data.read` takes.
        against: another directory, such as the test split; its examples that occur in ``directory`` are counted.
        label: the feature whose classes are counted. Default: the one that the directory names.
        content: the features in which examples are equal. Default: all but the label.
        progress: a function that is called now and then with the number of examples read so far, and of all.
        storage_options: options of fsspec's driver; for URLs only.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it.
        records: the kind of records in TFRecord and ArrayRecord files; see `tfdist.data.open`.
    Raises:
        ConfigError: there is no such directory or feature, or the features of both directories cannot be compared.
        CorruptDataError: a manifest or a shard as a whole cannot be trusted, or no example is sound. Corrupt examples
            are counted.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.array([1.0, 2.0, 1.0, 4.0]), "label": np.array([0, 1, 0, 1])}, folder)
        ...     found = stats(folder)
        ...     found.features["x"].mean, dict(found.labels), found.duplicates.pairs
        (2.0, {'0': 2, '1': 2}, ((0, 2),))
    """
    options: dict[str, Any] = {
        "storage_options": storage_options,
        "follow_symlinks": follow_symlinks,
        "records": records,
    }
    views = [view_of(one, **options) for one in (directory, *([] if against is None else [against]))]
    schema = views[0].examples.schema
    label = label or views[0].examples.manifest.label
    names = tuple(content) or tuple(name for name in schema if name != label) or tuple(schema)
    for argument, name in (("label", label), *(("content", name) for name in names)):
        if name is not None and name not in schema:
            raise ConfigError(
                f"{argument} names the feature {name!r}; the examples have {', '.join(map(repr, schema))}.",
                name=argument,
                received=name,
            )
    if against is not None:
        _require_comparable(schema, views[1].examples.schema, names, validation.shown(views[1].examples.url))
    total, done = sum(map(len, views)), 0

    def passed(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    contents = _Contents(schema, names, label)
    ours = _Pass(views[0], label, contents)
    ours.run(passed)
    theirs = None
    if against is not None:
        theirs = _Contents(schema, names, label)
        for batch in _batches(views[1], passed):
            theirs.add(batch.columns, batch.numbers)
    return ours.finished(theirs)


def _require_comparable(one: Schema, other: Schema, names: Sequence[str], url: str) -> None:
    for name in names:
        there = other.get(name)
        if there is None or (one[name].dtype == TEXT) != (there.dtype == TEXT):
            raise ConfigError(
                f"examples are compared in the feature {name!r}, which is {one[name]}; in {url} it is "
                f"{there or 'missing'}. Name the features that both have: content=[...] (--content NAME).",
                name="content",
                received=name,
            )


@dataclass(frozen=True)
class _Batch:
    """Sound examples of one shard: their features and numbers; `corrupt` has the numbers of the others."""

    shard: int
    columns: _Columns
    numbers: _Ids
    corrupt: _Ids


def _batches(view: View, passed: Callable[[int], None]) -> Iterator[_Batch]:
    """Yield all examples, shard by shard, a few MiB at a time."""
    examples = view.examples
    fetch = fetcher_of(examples, verify="always", skip=True)
    mean = examples.manifest.total_bytes // max(1, len(examples))
    step = max(1, min(_STEP, _STEP_BYTES // max(1, mean)))
    for shard, ids in _by_shard(view):
        for at in range(0, len(ids), step):
            chunk = np.asarray(ids[at : at + step], np.int64)
            columns, numbers, corrupt = _columns(fetch, chunk)
            yield _Batch(shard, columns, numbers, corrupt)
            passed(len(chunk))


def _by_shard(view: View) -> Iterator[tuple[int, Sequence[int] | _Ids]]:
    """Yield the examples of each shard, in their order."""
    begins = view.examples.begins
    if view.ids is None:
        yield from enumerate(range(*bounds) for bounds in itertools.pairwise(begins.tolist()))
        return
    shards = np.searchsorted(begins, view.ids, side="right") - 1
    order = np.argsort(shards, kind="stable")
    present, firsts = np.unique(shards[order], return_index=True)
    yield from zip(present.tolist(), np.split(view.ids[order], firsts[1:]), strict=True)


def _columns(fetch: ColumnFetcher, ids: _Ids) -> tuple[_Columns, _Ids, _Ids]:
    found, weight = fetch(ids)
    sound = weight > 0
    numbers, schema = ids[sound], fetch.examples.schema
    if PAYLOAD not in found:
        columns: _Columns = {name: taken(found[name], sound) for name in schema}
        for name, feature in schema.items():
            if feature.size is None and feature.dtype != TEXT:  # of files of others: the bytes of each list
                columns[name] = [np.frombuffer(value, feature.dtype) for value in columns[name]]
        return columns, numbers, ids[~sound]
    rows, kept = [], []
    for payload in found[PAYLOAD][sound]:
        try:
            parsed = example.parse(payload)
            rows.append([example.value(name, feature, parsed) for name, feature in schema.items()])
        except CorruptDataError:  # its checksum fits, and it is no example of the schema
            kept.append(False)
        else:
            kept.append(True)
    columns = {}
    for place, (name, feature) in enumerate(schema.items()):
        values = [row[place] for row in rows]
        is_array = feature.dtype != TEXT and feature.size is not None
        columns[name] = np.stack(values) if is_array and values else values
    good = numbers[np.array(kept, bool)]
    return columns, good, np.setdiff1d(ids, good)


class _Contents:
    """The contents of examples, told apart by their hashes."""

    def __init__(self, schema: Schema, names: Sequence[str], label: str | None) -> None:
        self._schema = schema
        self.names = tuple(names)
        self._label = label
        self.sample = HashSample(MOST_CONTENTS)

    def add(self, columns: _Columns, numbers: _Ids) -> None:
        if not len(numbers):
            return
        parts = [pieces_of(self._schema[name], columns[name], self._schema[name].dtype) for name in self.names]
        keys = hashes(map(b"".join, zip(*parts, strict=True)))
        labels = None
        if self._label is not None and self._label in columns:
            labels = keys_of(self._schema[self._label], columns[self._label])
        self.sample.add(keys, numbers, labels)

    def duplicates(self) -> Repeats:
        rows, depth = self.sample.kept(), self.sample.depth
        again = rows[rows["count"] > 1]
        again = again[np.argsort(again["first"], kind="stable")]
        return Repeats(
            features=self.names,
            examples=int((again["count"] - 1).sum()) << depth,
            unlike_labels=int(again["differs"].sum()) << depth,
            pairs=_pairs(again["first"], again["last"]),
            error=self.sample.different.error,
        )

    def overlap(self, other: "_Contents") -> Repeats:
        ours, theirs, depth = shared(self.sample, other.sample)
        unlike = theirs["differs"] | ours["differs"] | (ours["label"] != theirs["label"])
        order = np.argsort(theirs["first"], kind="stable")
        return Repeats(
            features=self.names,
            examples=int(theirs["count"].sum()) << depth,
            unlike_labels=int(unlike.sum()) << depth,
            pairs=_pairs(theirs["first"][order], ours["first"][order]),
            error=max(self.sample.different.error, other.sample.different.error),
        )


def _pairs(ones: _Ids, others: _Ids) -> tuple[tuple[int, int], ...]:
    return tuple(zip(ones[:_MOST_PAIRS].tolist(), others[:_MOST_PAIRS].tolist(), strict=True))


class _Pass:
    """One pass over a directory."""

    def __init__(self, view: View, label: str | None, contents: _Contents) -> None:
        self._view = view
        self._examples: Examples = view.examples
        self._label = label
        self._contents = contents
        schema = view.examples.schema
        self._tallies = {name: FeatureTally(feature) for name, feature in schema.items()}
        self._labels = None if label is None else LabelTally(schema[label])
        self._corrupt: list[int] = []
        count = len(view)
        chosen = Permutation(count, "stats")(np.arange(min(count, _SAMPLED)))
        self._chosen = chosen if view.ids is None else view.ids[chosen]
        self._shards: dict[int, _Shard] = {}
        self._skews = 0

    def run(self, passed: Callable[[int], None]) -> None:
        for batch in _batches(self._view, passed):
            self._corrupt += batch.corrupt.tolist()[: _MOST_CORRUPT - len(self._corrupt)]
            if len(batch.numbers):
                self._add(batch)

    def _add(self, batch: _Batch) -> None:
        shard = self._shards.setdefault(batch.shard, _Shard())
        shard.examples += len(batch.numbers)
        chosen = np.isin(batch.numbers, self._chosen, assume_unique=True)
        for name, tally in self._tallies.items():
            mask = batch.columns.get(name + _NULL_MASK)
            found = tally.add(batch.columns[name], batch.numbers, None if mask is None else np.asarray(mask, bool))
            if found.count and (name != self._label or self._labels is None or self._labels.counts is None):
                shard.moments[name] = merged(shard.moments.get(name, Moments()), found)
            if chosen.any():
                tally.sample(taken(batch.columns[name], chosen))
        if self._labels is not None and self._label is not None:
            counts = self._labels.add(batch.columns[self._label])
            before = len(shard.labels)
            if self._skews <= _MOST_SKEWS:
                shard.labels.update(counts)
            self._skews += len(shard.labels) - before
        self._contents.add(batch.columns, batch.numbers)

    def finished(self, other: _Contents | None) -> Stats:
        examples = sum(shard.examples for shard in self._shards.values())
        whole = {name: tally.moments for name, tally in self._tallies.items()}
        return Stats(
            url=self._examples.url,
            examples=len(self._view),
            corrupt=tuple(self._corrupt),
            features={name: tally.finished(examples) for name, tally in self._tallies.items()},
            label=self._label,
            labels=None if self._labels is None else self._labels.named(),
            shards=tuple(self._shard(number, shard, whole) for number, shard in sorted(self._shards.items())),
            duplicates=self._contents.duplicates(),
            overlap=None if other is None else self._contents.overlap(other),
            samples={name: np.concatenate(t.sampled) for name, t in self._tallies.items() if t.sampled},
        )

    def _shard(self, number: int, shard: "_Shard", whole: Mapping[str, Moments]) -> ShardStats:
        shifts = {name: _shift(found, whole[name]) for name, found in shard.moments.items()}
        shifted = max(shifts, key=lambda name: shifts[name], default=None)
        return ShardStats(
            file=self._examples.manifest.shards[number].file,
            examples=shard.examples,
            skew=self._skew(shard.labels),
            shift=0.0 if shifted is None else shifts[shifted],
            shifted=shifted,
        )

    def _skew(self, labels: Counter[Any]) -> float | None:
        counts = None if self._labels is None else self._labels.counts
        if not counts or self._skews > _MOST_SKEWS:
            return None
        here, everywhere = max(1, labels.total()), counts.total()
        return sum(abs(labels[kind] / here - count / everywhere) for kind, count in counts.items()) / 2


class _Shard:
    def __init__(self) -> None:
        self.examples = 0
        self.moments: dict[str, Moments] = {}
        self.labels: Counter[Any] = Counter()


def _shift(part: Moments, whole: Moments) -> float:
    if not whole.deviation or part.mean is None or whole.mean is None:
        return 0.0
    return abs(part.mean - whole.mean) / whole.deviation
