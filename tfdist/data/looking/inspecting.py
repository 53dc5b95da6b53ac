"""Describe a directory of examples from its manifest and indices."""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tfdist.data.examples.checked_examples import Examples
from tfdist.data.format.record_framing import OVERHEAD_BYTES
from tfdist.data.format.schema import FIXED
from tfdist.data.looking.feature_tallies import LabelTally
from tfdist.data.reading.view import open_directory
from tfdist.planner.plot_style import require_matplotlib, save

_BARS = 12


@dataclass(frozen=True)
class Bar:
    """A bar of a histogram: the number of examples with a size from ``start`` to below ``stop``, in bytes."""

    start: int
    stop: int
    examples: int


@dataclass(frozen=True)
class Info:
    """The contents of a directory.

    Attributes:
        url: the directory.
        layout: the way in which examples are read: fixed, extent or generic.
        revision: the revision: 1 as written, and one more for each repair and each overwriting.
        digest: a text that differs if the examples do.
        examples: the number of examples.
        bytes: the size of all shards in bytes.
        index_bytes: the size of all indices in bytes.
        shards: the file name, number of examples and size in bytes of each shard.
        balance: the size of the largest shard, as a multiple of the mean size.
        schema: the dtype, shape and encoding of each feature.
        label: the feature to learn; None if there is none.
        sizes: a histogram of the examples' sizes; the last bar includes its end.
        labels: class (its name, if it has one, else its value) -> number of examples; None if the label is not an
            integer, or has very many values.
    """

    url: str
    layout: str
    revision: int
    digest: str
    examples: int
    bytes: int
    index_bytes: int
    shards: tuple[Mapping[str, Any], ...]
    balance: float
    schema: Mapping[str, Mapping[str, Any]]
    label: str | None
    sizes: tuple[Bar, ...]
    labels: Mapping[str, int] | None

    def to_json(self) -> dict[str, Any]:
        """Return the description as JSON for programs."""
        return asdict(self)

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draw sizes, shards and labels into a picture, whose extension sets the format.

        Raises:
            MissingDependencyError: Matplotlib is missing.
        """
        require_matplotlib()
        from matplotlib.figure import Figure

        shards = [shard["bytes"] / 1e6 for shard in self.shards]
        figure = Figure(figsize=(12, 4), layout="constrained")
        sizes, balance, classes = figure.subplots(1, 3)
        sizes.stairs([bar.examples for bar in self.sizes], [*(b.start for b in self.sizes), self.sizes[-1].stop or 1])
        sizes.set(title="sizes", xlabel="bytes of an example", ylabel="examples")
        balance.bar(range(len(shards)), shards)
        balance.set(title=f"shards (largest {self.balance:.2f} times the mean)", xlabel="shard", ylabel="MB")
        if self.labels:
            classes.bar(list(self.labels), list(self.labels.values()))
            classes.tick_params(axis="x", rotation=90)
        classes.set(title=f"label {self.label}" if self.labels else "no label that is an integer", ylabel="examples")
        save(figure.savefig, path)


def info(
    directory: str | os.PathLike[str],
    *,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
) -> Info:
    """Return a description of the content of a directory.

    Args:
        directory: a directory that `tfdist.data.write` or `tfdist.data.index` made; a path or an fsspec URL.
        storage_options: options of fsspec's driver, such as ``{"anon": True}``; for URLs only.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it, as in the caches
            of DVC and of hubs. Default: they are refused.
    Raises:
        ConfigError: there is no manifest.
        CorruptDataError: the manifest, an index or the size of a shard cannot be trusted.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.zeros((3, 2), "float32"), "label": np.array([1, 0, 1])}, folder)
        ...     found = info(folder)
        ...     found.layout, found.examples, dict(found.labels)
        ('fixed', 3, {'0': 1, '1': 2})
    """
    examples = open_directory(directory, storage_options=storage_options, follow_symlinks=follow_symlinks)
    manifest = examples.manifest
    sizes = [shard.bytes for shard in manifest.shards]
    mean = sum(sizes) / max(1, len(sizes))
    return Info(
        url=examples.storage.url,
        layout=manifest.layout,
        revision=manifest.revision,
        digest=manifest.digest,
        examples=len(examples),
        bytes=manifest.total_bytes,
        index_bytes=sum(shard.index.bytes for shard in manifest.shards if shard.index),
        shards=tuple({"file": s.file, "examples": s.examples, "bytes": s.bytes} for s in manifest.shards),
        balance=max(sizes, default=0) / mean if mean else 1.0,
        schema={name: feature.to_json() for name, feature in manifest.schema.items()},
        label=manifest.label,
        sizes=_histogram(examples),
        labels=_labels(examples),
    )


def _histogram(examples: Examples) -> tuple[Bar, ...]:
    shards = [shard for shard in examples.manifest.shards if shard.examples]
    if not shards:
        return (Bar(0, 0, 0),)
    low, high = min(shard.smallest for shard in shards), max(shard.largest for shard in shards)
    if examples.manifest.layout == FIXED or low == high:
        return (Bar(low, high, len(examples)),)
    edges = np.unique(np.linspace(low, high, min(_BARS, high - low) + 1).astype(np.int64))
    counts = np.zeros(len(edges) - 1, np.int64)
    for number in range(len(examples.manifest.shards)):
        counts += np.histogram(np.diff(examples.index(number).offsets) - OVERHEAD_BYTES, edges)[0]
    return tuple(Bar(*map(int, bar)) for bar in zip(edges[:-1], edges[1:], counts, strict=True))


def _labels(examples: Examples) -> dict[str, int] | None:
    label = examples.manifest.label
    if label is None:
        return None
    feature = examples.schema[label]
    if feature.encoding != "int64" or feature.shape != ():
        return None
    tally = LabelTally(feature)
    tally.add(examples.integers(label).astype(np.int64))
    return tally.named()
