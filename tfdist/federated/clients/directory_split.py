"""The division of a directory of examples among simulated clients: one directory each, in a folder for `App`."""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples, payload_of
from tfdist.data.examples.computed_examples import Computed
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import record_framing
from tfdist.data.format.contents import Contents
from tfdist.data.format.data_manifest import Shard
from tfdist.data.format.revisions import shard_name
from tfdist.data.format.schema import TEXT, texts_of
from tfdist.data.reading.view import open_directory
from tfdist.data.writing.encode import Encoded
from tfdist.data.writing.shard import SHARD_BYTES, ShardWriter
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.federated.clients.data_partitions import split_by, split_dirichlet, split_iid
from tfdist.storage.directory import storage
from tfdist.storage.files import (
    explained,
    is_temporary,
    make_directory,
    remove_abandoned,
    sync_directory,
    sync_file_system,
)
from tfdist.storage.local_folders import claimed_folder

MOST_CLIENTS = 100_000
LONGEST_NAME, LONGEST_BYTES = 100, 200  # of a client, in characters and in UTF-8
_READ_BYTES = 64 << 20  # records in memory at once
_VALUES = 4096  # examples whose texts are read at once
_UNFIT = re.compile(r"^\.|[%/\x00-\x1f\x7f]")
_Numbers = NDArray[np.int64]
Progress = Callable[[int, int], None]


def split_directory(
    directory: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    by: str | None = None,
    clients: int | None = None,
    alpha: float | None = None,
    label: str | None = None,
    seed: int = 0,
    minimum: int = 1,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
) -> dict[str, int]:
    """Divide the examples of a directory among clients, with a directory of `tfdist.data` for each.

    Each example goes to one client and keeps its bytes; a client has its examples in the order of the directory.
    Records pass through at most 64 MiB of memory. The folder appears only when it is whole: a run that is killed leaves
    no folder.

    Args:
        directory: a directory that `tfdist.data.write` or `tfdist.data.index` made; a path or an fsspec URL.
        into: a local folder that does not exist or is empty; its sub-folders have the names of the clients.
        by: a feature of single integers or texts, such as an author: each value becomes a client.
        clients: the number of clients, if there is no ``by``: divided at random as by `split_iid`, or with ``alpha`` as
            by `split_dirichlet`.
        alpha: the parameter of a Dirichlet distribution of labels over clients.
        label: the feature whose values ``alpha`` distributes; the label of the directory by default.
        seed: the seed of the random division; the same seed gives the same clients.
        minimum: the least number of examples of a client, with ``alpha``.
        progress: a function that is called now and then with the bytes copied and the bytes in all.
        storage_options: options of fsspec's driver, such as ``{"anon": True}``; only for URLs.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it.
    Returns:
        The number of examples of each client, by the client's name.
    Raises:
        ConfigError: ``into`` has files; an argument or the feature is unsuitable; a value cannot name a folder.
        CorruptDataError: a record of the directory is corrupt.
        StorageError: the disk is full or read-only.

    Example:
        >>> import tempfile, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.arange(4.0), "city": ["lyon", "rome", "lyon", "bonn"]}, f"{folder}/all")
        ...     split_directory(f"{folder}/all", f"{folder}/clients", by="city")
        {'bonn': 1, 'lyon': 2, 'rome': 1}
    """
    target = Path(os.path.abspath(_local(into)))
    examples = open_directory(directory, storage_options=storage_options, follow_symlinks=follow_symlinks)
    if isinstance(examples, Computed):  # its bytes are no records, which are copied here
        raise ConfigError(
            f"{os.fspath(directory)} has no TFRecord files. Copy its examples first, in Python: found = "
            f"tfdist.data.open({os.fspath(directory)!r}); tfdist.data.write(found, 'data', schema=found.schema).",
            name="directory",
            received=os.fspath(directory),
        )
    with explained(target, "read"):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise ConfigError(
                f"{target} is there already. Choose a folder that does not exist or is empty, or remove it first.",
                name="into",
                path=target,
            )
    parts = _parts(examples, by, clients, alpha, label, validation.integer("seed", seed, minimum=0), minimum)
    with explained(target, "written"):
        make_directory(target.parent)
        for name in os.listdir(target.parent):
            if is_temporary(name) and name.startswith(f".{target.name}."):
                remove_abandoned(target.parent / name, shutil.rmtree)
        staging, descriptor = claimed_folder(target.parent, target.name, None)
        try:
            _write(examples, parts, staging, progress)
            sync_file_system(descriptor)  # once, not for each of many small files
            os.replace(staging, target)
            sync_directory(target.parent)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        finally:
            os.close(descriptor)
    return {name: len(numbers) for name, numbers in parts.items()}


def _local(into: str | os.PathLike[str]) -> str:
    text = os.path.expanduser(os.fspath(into))
    if "://" in text:
        raise ConfigError(
            f"into is {text!r}; it must be a local folder, which appears at once. Copy it to a store afterwards.",
            name="into",
            received=text,
        )
    return text


# --- who has which examples -------------------------------------------------------------------------------------------
def _parts(
    examples: Examples,
    by: str | None,
    clients: int | None,
    alpha: float | None,
    label: str | None,
    seed: int,
    minimum: int,
) -> dict[str, _Numbers]:
    """Return the sorted numbers of each client's examples, by the client's name."""
    if (by is None) == (clients is None) or (by is not None and (alpha, label) != (None, None)):
        raise ConfigError(
            "a split is by a feature, or over a number of clients, which may have alpha and label. Pass by (--by), or "
            "clients (--iid N, or --dirichlet ALPHA --clients N).",
            name="by",
            received=by,
        )
    numbers = (np.arange(len(examples), dtype=np.int64),)
    if by is not None:
        values = _values(examples, by)
        kinds = len(np.unique(values))
        if kinds > MOST_CLIENTS:
            raise ConfigError(
                f"the feature {by!r} has {kinds:,} values, and a folder has at most {MOST_CLIENTS:,} clients. Choose a "
                "feature that several examples share.",
                name="by",
                received=kinds,
            )
        return _named(split_by(numbers, values), examples.schema[by].names, by)
    validation.integer("clients", clients, minimum=1, maximum=MOST_CLIENTS)
    assert clients is not None
    if alpha is None:
        if label is not None:
            raise ConfigError(
                "label is for a Dirichlet distribution; pass alpha (--dirichlet) with it.", name="label", received=label
            )
        found = split_iid(numbers, clients, seed=seed)
    else:
        validation.number("alpha", alpha, above=0)
        chosen = label or examples.manifest.label
        if chosen is None:
            raise ConfigError(
                "the directory has no label. Pass label (--label), the feature whose values alpha distributes.",
                name="label",
                received=None,
            )
        found = split_dirichlet(numbers, _values(examples, chosen), clients, alpha=alpha, seed=seed, minimum=minimum)
    width = len(str(clients - 1))
    return {f"client-{place:0{width}d}": np.sort(mine) for place, (mine,) in enumerate(found)}


def _named(found: Mapping[str, tuple[_Numbers, ...]], classes: Sequence[str], by: str) -> dict[str, _Numbers]:
    """Map folder names to the clients' parts; characters that folders cannot have are written as in URLs, ``%2F``."""
    named = {}
    for text, (numbers,) in found.items():
        name = classes[int(text)] if classes and 0 <= int(text) < len(classes) else text
        name = _UNFIT.sub(lambda match: f"%{ord(match[0]):02X}", name)
        if not 0 < len(name) <= LONGEST_NAME or len(name.encode()) > LONGEST_BYTES:
            raise ConfigError(
                f"example {numbers[0]} has {name[:50]!r} as {by!r}; the name of a client has 1 to {LONGEST_NAME} "
                "characters. Choose a feature with short values.",
                name="by",
                received=name,
            )
        named[name] = numbers
    return dict(sorted(named.items()))


def _values(examples: Examples, name: str) -> NDArray[Any]:
    """Return a value for each example: integers, or texts."""
    feature = examples.schema.get(name)
    if feature is None or feature.shape != () or feature.encoding not in ("int64", "bytes") or feature.is_image:
        what = "is not there" if feature is None else f"is {feature}"
        near = validation.nearest(name, examples.schema) if feature is None else ""
        raise ConfigError(
            f"the feature {name!r} {what}; it must be a single integer or text per example. There are "
            f"{', '.join(map(repr, examples.schema))}.{near}",
            name=name,
            received=None if feature is None else str(feature),
        )
    if feature.dtype != TEXT:
        return examples.integers(name).astype(feature.dtype)  # an index has a bool as a number
    found = list[str]()
    for begin in range(0, len(examples), _VALUES):
        ids = np.arange(begin, min(begin + _VALUES, len(examples)), dtype=np.int64)
        for number, text in zip(ids, _texts(examples, name, ids), strict=True):
            try:
                found.append(text.decode())
            except UnicodeDecodeError:
                raise ConfigError(
                    f"example {number} has {text[:50]!r} as {name!r}, which is not UTF-8 and cannot name a client.",
                    name=name,
                    received=text,
                ) from None
    return np.array(found, dtype=str)


def _texts(examples: Examples, name: str, ids: _Numbers) -> list[bytes]:
    """Return the texts alone if the index has their places; a corrupt one is found when its record is copied."""
    if name not in texts_of(examples.schema, examples.manifest.layout):
        return [one[name] for one in examples.each(ids.tolist())]
    shards, offsets, _ = examples.locate(ids)
    starts = offsets + record_framing.HEADER_BYTES + examples.column(f"start:{name}")[ids]
    sizes = examples.column(f"size:{name}")[ids]
    ranges = [
        (examples.manifest.shards[shard].file, int(start), int(size))
        for shard, start, size in zip(shards, starts, sizes, strict=True)
    ]
    with examples.binding.reading(np.unique(shards).tolist()):
        return examples.storage.read_ranges(ranges)


# --- copying ----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class _Job:
    """One shard of a client, with the examples in it."""

    client: str
    number: int
    examples: _Numbers


@dataclass(frozen=True)
class _Records:
    frames: Sequence[bytes]
    columns: Mapping[str, NDArray[Any]]

    def encoded(self, places: _Numbers) -> Encoded:
        frames = [self.frames[place] for place in places.tolist()]
        columns = {name: values[places] for name, values in self.columns.items()}
        return Encoded(b"".join(frames), np.cumsum([len(frame) for frame in frames]), columns)


def _write(examples: Examples, parts: Mapping[str, _Numbers], folder: Path, progress: Progress | None) -> None:
    like, done = examples.manifest, 0
    shards = {name: list[Shard]() for name in parts}
    for job, pieces in _jobs_with_records(examples, parts):
        place = storage(folder / job.client, durable=False)
        with ShardWriter(place, shard_name(job.number), like.layout) as writer:
            for encoded in pieces:
                writer.add(encoded)
                done += len(encoded.data)
                if progress is not None:
                    progress(done, like.total_bytes)
        assert writer.shard is not None
        shards[job.client].append(writer.shard)
    for name, written in shards.items():
        with storage(folder / name, durable=False).create(manifests.NAME) as file:
            file.write(replace(like, shards=tuple(written), revision=1).to_bytes())


def _jobs_with_records(examples: Examples, parts: Mapping[str, _Numbers]) -> Iterator[tuple[_Job, Iterator[Encoded]]]:
    """Yield jobs; those that fit into memory together are read in the directory's order, a larger one is streamed."""
    contents = Contents(examples.schema, examples.manifest.layout)
    group, size = list[_Job](), 0
    for name, numbers in parts.items():
        for place, mine in enumerate(_cut(examples, numbers, SHARD_BYTES)):
            own = int(_sizes(examples, mine).sum())
            if group and size + own > _READ_BYTES:
                yield from _read_together(examples, contents, group)
                group, size = [], 0
            group.append(_Job(name, place, mine))
            size += own
    yield from _read_together(examples, contents, group)


def _read_together(
    examples: Examples, contents: Contents, jobs: Sequence[_Job]
) -> Iterator[tuple[_Job, Iterator[Encoded]]]:
    if len(jobs) == 1:
        pieces = _cut(examples, jobs[0].examples, _READ_BYTES)
        read = (_read(examples, contents, piece) for piece in pieces)
        yield jobs[0], (records.encoded(np.arange(len(records.frames))) for records in read)
        return
    numbers = np.sort(np.concatenate([job.examples for job in jobs]))
    records = _read(examples, contents, numbers)
    for job in jobs:
        yield job, iter([records.encoded(np.searchsorted(numbers, job.examples))])


def _sizes(examples: Examples, numbers: _Numbers) -> _Numbers:
    return examples.locate(numbers)[2] + record_framing.OVERHEAD_BYTES


def _cut(examples: Examples, numbers: _Numbers, most: int) -> list[_Numbers]:
    """Cut the examples into pieces of approximately this number of bytes."""
    before = np.cumsum(_sizes(examples, numbers)) // most
    return np.split(numbers, np.flatnonzero(np.diff(before)) + 1)


def _read(examples: Examples, contents: Contents, numbers: _Numbers) -> _Records:
    shards, offsets, lengths = examples.locate(numbers)
    files = [examples.manifest.shards[shard].file for shard in shards]
    sizes = lengths + record_framing.OVERHEAD_BYTES
    with examples.binding.reading(np.unique(shards).tolist()):
        frames = examples.storage.read_ranges(list(zip(files, offsets.tolist(), sizes.tolist(), strict=True)))
    payloads = [payload_of(frame) for frame in frames]
    rows = contents.of([payload or b"" for payload in payloads])
    for place, payload in enumerate(payloads):
        if payload is None or place in rows.problems:
            raise CorruptDataError(
                examples.corrupt(int(numbers[place]), int(shards[place]), int(offsets[place])), path=files[place]
            )
    return _Records(frames, rows.columns)
