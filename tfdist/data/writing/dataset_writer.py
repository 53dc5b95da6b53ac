"""Write examples as a directory of TFRecord shards with index and manifest."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c

from tfdist import validation
from tfdist.data.format import data_manifest as manifests
from tfdist.data.format.data_manifest import Manifest, Shard, read_manifest
from tfdist.data.format.example import Template
from tfdist.data.format.revisions import next_revision, shard_name, written_in
from tfdist.data.format.schema import FIXED, Schema, label_of, layout_of, with_rounding
from tfdist.data.sources import Options, open_source, source_files, splits_of
from tfdist.data.sources.picture_checks import checked
from tfdist.data.sources.protocol import Source, part_of
from tfdist.data.writing import journal as journals
from tfdist.data.writing import write_splits
from tfdist.data.writing.encode import Chunks, Encoded, Encoder, blocks_from
from tfdist.data.writing.existing_examples import base_of, kept, require_one_set, taken, warn_of_others
from tfdist.data.writing.shard import SHARD_BYTES, ShardWriter, cuts, one_shard, write_shard
from tfdist.data.writing.write_splits import Progress
from tfdist.errors import ConfigError, CorruptDataError, DataChangedError
from tfdist.storage.directory import Storage, storage

_WORTH_A_PROCESS = 64 << 20  # bytes; starting one takes as long as writing about as many
_log = logging.getLogger(__name__)


def write(
    examples: Any,
    directory: str | os.PathLike[str],
    *,
    num_shards: int | None = None,
    shard_bytes: int | None = None,
    schema: Schema | None = None,
    label: str | None = None,
    processes: int | None = None,
    exists: str = "raise",
    check_images: bool = True,
    convert_images: bool = False,
    progress: Progress | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source_options: Mapping[str, Any] | None = None,
    split: str | None = None,
    nulls: Mapping[str, Any] | None = None,
    null_masks: Sequence[str] = (),
    delimiter: str | None = None,
) -> Manifest | Any:
    """Write examples as TFRecord files that every tool can read, with an index and a manifest.

    Examples keep their order. Shards are contiguous ranges of about equal bytes. Each appears whole or not at all, and
    the manifest last. An interrupted run resumes after the finished shards if it is called again with the same examples
    and options, and ends with the same bytes.

    Args:
        examples: a mapping of names to arrays, (images, labels), an iterable of mappings of names to values, a
            `tf.data.Dataset`, a `ray.data.Dataset`, or a path: of CSV, Parquet, Arrow, HDF5, NumPy or TFRecord files,
            or of a folder with a folder of pictures per class.
        directory: the directory to write; a path, or a URL that fsspec knows.
        num_shards: the number of files. Default: the number that follows from ``shard_bytes``.
        shard_bytes: the approximate size of a file in bytes. Default: 256 MiB.
        schema: the features of each example; classes with names are matched by name. Default: inferred from the first
            examples.
        label: the feature to learn. Default: "label" if there is one.
        processes: the number of processes that write at once, at most one per shard. Default: one per processor if
            there is enough to do. Several processes can read arrays, lists, pictures, local TFRecord files, and NumPy,
            Parquet and HDF5 files; Parquet and HDF5 files with texts or lists only if ``num_shards`` is given. A single
            process reads other sources, and a log line says so.
        exists: the treatment of examples that the directory already has: "raise" an error, "keep" them and write
            nothing, "append" the new ones behind them, or "overwrite" them: they stay until the new ones are complete.
            With "overwrite" the shards of an interrupted run are written anew, too.
        check_images: whether to decode each picture with TensorFlow, in other processes: pictures of a folder, and
            features with ``is_image``. A picture that cannot be decoded ends the run, with a list of all such pictures.
        convert_images: whether to store BMP and WebP pictures as PNG; otherwise the check refuses them.
        progress: a function that is called now and then with the number of written examples, the number of all (None if
            it is not known yet), and the number of written bytes.
        storage_options: options of fsspec's driver for ``directory``, if that is a URL.
        source_options: options of fsspec's driver for ``examples``, if these are URLs.
        split: the split to write, of a folder that has several. It is written into ``directory`` itself, with the
            schema and the classes of the train split next to it.
        nulls: for tables: column -> the value that replaces null; ``"*"`` stands for all other columns, ``"x[]"`` for
            the nulls in the lists of column x. Default: null is an error.
        null_masks: for tables: the columns that may be null. Each gets a feature NAME_is_null (bool) that marks the
            nulls; without ``nulls``, zero or empty text replaces null.
        delimiter: the separator of columns in CSV files. Default: a tab in .tsv, else a comma.
    Returns:
        The manifest; for several splits, a dict of their names to their manifests, train first.
    Raises:
        ConfigError: an argument is not allowed; an example does not fit the schema (the message has its number); or an
            interrupted run is called again with other examples, and what it has written stays.
        CorruptDataError: a picture cannot be decoded, or a file is damaged; the message names it.
        StorageError: the disk is full or read-only; a store cannot be reached. Finished shards stay.

    Example:
        >>> import tempfile, numpy as np
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write({"x": np.zeros((10, 4), "float32"), "label": np.arange(10)}, folder).examples
        10
    """
    validation.one_of("exists", exists, ("raise", "keep", "append", "overwrite"))
    num_shards, wanted_bytes = _sizes(num_shards, shard_bytes)
    if processes is not None:
        processes = validation.integer("processes", processes, minimum=1)
    if source_options and not source_files.has_urls(examples):
        raise ConfigError("source_options are for sources that are URLs; this one is none. Leave them out.")
    looks = _looks(check_images, convert_images)
    place = storage(directory, storage_options=storage_options)
    options = Options(nulls or {}, null_masks, delimiter)
    schema = with_rounding(schema)
    if (found := kept(place, exists)) is not None:
        warn_of_others(examples, found, place)
        return found
    base = base_of(place, exists, schema, label)
    schema, label = (schema, label) if base is None else (base.schema, base.label)

    def prepared(at: Storage, source: Source, report: Progress | None) -> Callable[[], Manifest]:
        job = _Job(at, source, num_shards, wanted_bytes, report, storage_options, source_options, base)
        learnt = label_of(source.schema, label) if base is None else base.label

        def run() -> Manifest:
            with at.lock():  # a request that is refused before has left nothing
                if (found := kept(at, exists)) is not None:  # another writer had the lock
                    return found
                return job.run(label=learnt, processes=processes, overwrite=exists == "overwrite")

        return run

    with source_files.driven_by(source_options), contextlib.ExitStack() as stack:
        names = splits_of(examples) if split is None else []
        require_one_set(names, exists)
        if split is not None and schema is None:
            schema = write_splits.schema_of_train(examples, split, label=label, options=options)
        if not names:
            source = open_source(examples, schema=schema, label=label, split=split, options=options)
            if schema is None:
                write_splits.warn_of_numbers(examples, source)
            if looks:
                source = stack.enter_context(checked([source], convert=convert_images, processes=processes))[0]
            return prepared(place, source, progress)()
        sources = write_splits.opened(examples, names, schema=schema, label=label, options=options)
        if looks:
            looked = stack.enter_context(checked(sources.values(), convert=convert_images, processes=processes))
            sources = dict(zip(sources, looked, strict=True))
        parent = os.fspath(directory).rstrip("/")
        places = {name: storage(f"{parent}/{name}", storage_options=storage_options) for name in sources}
        reports = write_splits.summed(progress, sources)
        runs = {name: prepared(places[name], source, reports[name]) for name, source in sources.items()}
        identities = {name: source.identity for name, source in sources.items()}
        job = {"splits": identities, "num_shards": num_shards, "shard_bytes": wanted_bytes, "label": label}
        return write_splits.write_each(
            place, places, runs, job=job, schema=next(iter(sources.values())).schema, exists=exists
        )


def _sizes(num_shards: int | None, shard_bytes: int | None) -> tuple[int | None, int]:
    if num_shards is not None:
        num_shards = validation.integer("num_shards", num_shards, minimum=1, maximum=1_000_000)
    if shard_bytes is None:
        return num_shards, SHARD_BYTES
    shard_bytes = validation.integer("shard_bytes", shard_bytes, minimum=1)
    if num_shards is not None:
        raise ConfigError(
            "num_shards and shard_bytes are both given; either decides the other. Leave one out.",
            name="num_shards",
            received=num_shards,
        )
    return None, shard_bytes


def _looks(check_images: bool, convert_images: bool) -> bool:
    looks = validation.boolean("check_images", check_images)
    if validation.boolean("convert_images", convert_images) and not looks:
        raise ConfigError(
            "convert_images decodes pictures, and check_images is False. Leave one of them out.",
            name="convert_images",
            received=True,
        )
    return looks


@dataclass(eq=False)
class _Job:
    """The writing of one source into one directory; `base` is the manifest to append to, as it was before."""

    place: Storage
    source: Source
    num_shards: int | None
    shard_bytes: int
    progress: Progress | None
    storage_options: Mapping[str, Any] | None
    source_options: Mapping[str, Any] | None
    base: Manifest | None

    def __post_init__(self) -> None:
        self.schema = self.source.schema
        self.layout = layout_of(self.schema) if self.base is None else self.base.layout
        self.plan = self._cuts()

    def run(self, *, label: str | None, processes: int | None, overwrite: bool) -> Manifest:
        old = self._begin(overwrite=overwrite)
        plan = self.plan
        if plan is not None and self.source.seekable:
            shards = self._planned(plan, self._processes(processes, len(plan)))
        else:
            if processes is not None and processes > 1:
                why = (
                    "examples have sizes that reading them shows. Pass num_shards (--num-shards) to have several."
                    if self.source.seekable
                    else "this source is read from its beginning to its end."
                )
                _log.warning("processes is %d, and one writes: %s", processes, why)
            shards = self._in_order(None if plan is None else [stop for _, stop in plan])
        if not shards:
            raise ConfigError("there is no example. Pass at least one.")
        if self.base is not None and self.base.revision >= self._journal.revision:
            return self._finished_before(self.base, tuple(shards))
        revision = self._journal.revision if old is None else max(self._journal.revision, old.revision + 1)
        first = () if self.base is None else self.base.shards
        manifest = Manifest(
            schema=self.schema, layout=self.layout, shards=(*first, *shards), label=label, revision=revision
        )
        if old is not None and (old.shards, old.label) == (manifest.shards, label):
            manifest = old  # the run before was interrupted behind its manifest
        else:
            with self.place.create(manifests.NAME) as file:  # from here on these are the examples
                file.write(manifest.to_bytes())
        return self._end(manifest)

    def _finished_before(self, manifest: Manifest, shards: tuple[Shard, ...]) -> Manifest:
        """Finish an appending that was interrupted after its manifest was written."""
        self._end(manifest)
        if shards != manifest.shards[-len(shards) :]:
            raise ConfigError(
                f"{self.place.url} holds the examples of an appending that was interrupted at its end, and those "
                "given now are others. Nothing was appended; append them again.",
                name="exists",
                path=self.place.url,
            )
        return manifest

    def _end(self, manifest: Manifest) -> Manifest:
        self._journal.end()
        self._remove(self._leftovers(manifest))  # last: a reader of what was overwritten continues until then
        return manifest

    def _leftovers(self, manifest: Manifest | None) -> list[str]:
        """Return the files of tfdist that a manifest does not name."""
        named = set() if manifest is None else manifest.files
        return [name for name in self.place.names() if written_in(name) and name not in named]

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self.place.remove(name)

    def _begin(self, *, overwrite: bool) -> Manifest | None:
        """Begin, or resume an interrupted run of the same job; return the manifest to be overwritten."""
        job: dict[str, Any] = {"num_shards": self.num_shards, "shard_bytes": self.shard_bytes}
        job |= {"version": manifests.VERSION} | ({} if self.base is None else {"exists": "append"})
        self._journal = journals.Journal(
            self.place, {**job, "schema": self.schema.to_json(), "source": self.source.identity}
        )
        names = self.place.names()
        is_there, old = manifests.NAME in names, None
        if self.base is not None:
            return self._begin_appending()
        if is_there:
            is_known = self.source.identifies or bool(self._journal.shards)  # which are compared
            if not overwrite and (self._journal.is_new or not is_known):
                raise taken(self.place)
            with contextlib.suppress(CorruptDataError):  # it cannot be trusted: the files that it names are unknown
                old = read_manifest(self.place)
        if not overwrite:
            self._tell_of_interrupted()
        if self._journal.is_new or overwrite:
            if old is not None or not is_there:
                self._remove(self._leftovers(old))
            last, used = (1, names) if old is None else (old.revision, sorted(old.files))
            self._journal.begin(next_revision(last, used) if is_there else 1)
        return old

    def _begin_appending(self) -> Manifest:
        assert self.base is not None
        old = read_manifest(self.place)
        if not old.begins_with(self.base):
            raise DataChangedError(
                f"{self.place.url} was written anew or repaired since this appending began. Append again.",
                path=self.place.url,
            )
        self.base = old  # another writer may have appended meanwhile
        self._tell_of_interrupted()
        if self._journal.is_new:
            self._remove(self._leftovers(old))
            self._journal.begin(next_revision(old.revision, old.files))
        return old

    def _tell_of_interrupted(self) -> None:
        if others := self._journal.others:
            _log.warning(
                "%s: discards %s of an interrupted run, which had other examples, another schema, or another "
                "num_shards, shard_bytes or exists.",
                self.place.url,
                validation.counted(others, "finished shard"),
            )
        if finished := self._journal.shards:
            _log.warning(
                "%s: resumes after %s of an interrupted run (%s).",
                self.place.url,
                validation.counted(len(finished), "finished shard"),
                validation.counted(self._journal.examples, "example"),
            )

    def _cuts(self) -> list[tuple[int, int]] | None:
        source = self.source
        if source.count == 0:
            raise ConfigError("there is no example. Pass at least one.")
        by_bytes = source.sizes is not None or self.layout == FIXED
        if source.count is None or (self.num_shards is None and not by_bytes):
            if self.num_shards is not None:
                raise ConfigError(
                    f"num_shards is {self.num_shards}, and the number of examples is known only at their end. Pass "
                    "shard_bytes instead, or a source that has a length.",
                    name="num_shards",
                    received=self.num_shards,
                )
            return None
        example_bytes = Template(self.schema).length + 16 if self.layout == FIXED else 1
        return cuts(
            source.count,
            sizes=source.sizes,
            example_bytes=example_bytes,
            num_shards=self.num_shards,
            shard_bytes=self.shard_bytes,
        )

    def _processes(self, given: int | None, shards: int) -> int:
        if given is not None:
            return min(given, shards)
        source = self.source
        total = int(source.sizes.sum()) if source.sizes is not None else 0
        if self.layout == FIXED:
            total = (source.count or 0) * Template(self.schema).length
        worth = total // _WORTH_A_PROCESS
        return max(1, min(len(os.sched_getaffinity(0)), shards, worth))

    def _planned(self, plan: list[tuple[int, int]], processes: int) -> list[Shard]:
        """Write shards whose examples are read independently."""
        encode = Encoder(self.schema, self.layout)
        if not self.source.identifies:
            for number, shard in self._journal.shards.items():
                start, stop = plan[number] if number < len(plan) else plan[-1]
                self._need_same(shard, start, map(encode, self.source.blocks(start, stop)))
        open_ = [number for number in range(len(plan)) if number not in self._journal.shards]
        source, schema, layout = self.source, self.schema, self.layout
        bounds = ((number, self._name(number), plan[number]) for number in open_)
        if processes > 1 and len(open_) > 1:
            from tfdist.processes.pool.task_pool import in_processes

            fixed = self.place.url, self.storage_options, self.source_options
            # one after the other: each may have a copy of its examples
            tasks = (
                (*fixed, number, schema, layout, name, part_of(source, *span), *span) for number, name, span in bounds
            )
            done = in_processes(write_shard, tasks, processes)
        else:
            at, report = self.place, self._report
            done = (
                (number, one_shard(at, schema, layout, name, source, *span, report)) for number, name, span in bounds
            )
        self._report()
        for number, shard in done:
            self._journal.add(number, shard)
            self._report()
        return [self._journal.shards[number] for number in range(len(plan))]

    def _name(self, number: int) -> str:
        return shard_name(number + (0 if self.base is None else len(self.base.shards)), self._journal.revision)

    def _in_order(self, ends: list[int] | None) -> list[Shard]:
        """Write shards from a source that is read once, each up to its given end or until it has its bytes."""
        finished: list[Shard] = []
        while len(finished) in self._journal.shards:
            finished.append(self._journal.shards[len(finished)])
        written = sum(shard.examples for shard in finished)
        encode = Encoder(self.schema, self.layout)
        if self.source.identifies:
            stream = Chunks(blocks_from(self.source, written))
        else:
            stream, start = Chunks(self.source.blocks(0, None)), 0
            for shard in finished:
                self._need_same(shard, start, stream.next(encode, shard.examples))
                start += shard.examples
        while stream.more() and (ends is None or len(finished) < len(ends)):
            with ShardWriter(self.place, self._name(len(finished)), self.layout) as writer:
                while stream.more():
                    room = None if ends is None else ends[len(finished)] - written - writer.examples
                    encoded = stream.take(encode, room=room, room_bytes=self.shard_bytes - writer.bytes)
                    if encoded is None:
                        break
                    writer.add(encoded)
                    self._report(writer.examples, writer.bytes)
            assert writer.shard is not None
            self._journal.add(len(finished), writer.shard)
            finished.append(writer.shard)
            written += writer.examples
        if ends is not None and (written != ends[-1] or stream.more()):
            raise ConfigError(
                f"the source announced {ends[-1]} examples and gave {'more' if stream.more() else written}. Pass "
                "shard_bytes instead of num_shards, or a source whose length is right."
            )
        return finished

    def _need_same(self, shard: Shard, start: int, records: Iterator[Encoded]) -> None:
        """Refuse to resume if the given examples would make a different shard."""
        examples = size = crc = 0
        for encoded in records:
            data = encoded.data if isinstance(encoded.data, bytes) else bytes(encoded.data)
            crc = google_crc32c.extend(crc, data)
            examples, size = examples + len(encoded.ends), size + len(data)
        if (examples, size, crc) != (shard.examples, shard.bytes, shard.crc32c):
            anew = "pass exists='overwrite' (--overwrite)"
            if self.base is not None:
                anew = f"remove {journals.NAME} there"
            raise ConfigError(
                f"{self.place.url} has {shard.file} from a run that was interrupted, and the examples in it, {start} "
                f"to {start + shard.examples - 1}, are not those that are given now. Give the same examples again to "
                f"resume, or {anew} to begin anew.",
                name=shard.file,
                path=self.place.url,
            )

    def _report(self, examples: int = 0, data: int = 0) -> None:
        if self.progress is not None:
            self.progress(self._journal.examples + examples, self.source.count, self._journal.bytes + data)
