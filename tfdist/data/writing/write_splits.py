"""The writing of several splits, each into its directory, with the schema and the classes of the train split."""

import contextlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tfdist.data.format import data_manifest as manifests
from tfdist.data.format import splits
from tfdist.data.format.data_manifest import Manifest, read_manifest
from tfdist.data.format.schema import Schema
from tfdist.data.sources import Options, Source, images, open_source, paths_of, source_files, splits_of
from tfdist.data.writing.journal import Journal
from tfdist.errors import ConfigError, StorageError
from tfdist.storage.directory import Storage

_log = logging.getLogger(__name__)

#: Called with the examples that are written, how many there are (None where that is not known yet), and their bytes.
Progress = Callable[[int, int | None, int], None]


def opened(
    examples: Any, names: Sequence[str], *, schema: Any, label: str | None, options: Options
) -> dict[str, Source]:
    if schema is None and not splits.trains(names[0]):
        raise ConfigError(
            f"{os.fspath(paths_of(examples)[0])} holds the splits {', '.join(names)} and none called train, "
            "whose classes the others would have. Pass the schema (--schema) of the examples that are learnt from.",
            name="split",
            received=", ".join(names),
            path=os.fspath(paths_of(examples)[0]),
        )
    found: dict[str, Source] = {}
    for name in names:
        found[name] = open_source(examples, schema=schema, label=label, split=name, options=options)
        schema = found[name].schema if schema is None else schema
    return found


def schema_of_train(examples: Any, split: str, *, label: str | None, options: Options) -> Schema | None:
    """Return the schema for a split that is written without the others: the schema of the train split next to it."""
    train = [name for name in splits_of(examples) if splits.trains(name)]
    if not train or split == train[0]:
        return None
    return open_source(examples, label=label, split=train[0], options=options).schema


def warn_of_numbers(examples: Any, source: Source) -> None:
    """Warn that a folder such as photos/test numbers its classes differently from photos/train next to it."""
    names = source.schema["label"].names if "label" in source.schema else ()
    paths = paths_of(examples)
    if len(paths) != 1 or not names:
        return
    folder = source_files.spelled(paths[0]).rstrip("/")
    if not splits.is_word(source_files.name_of(folder)) or splits.trains(source_files.name_of(folder)):
        return
    with contextlib.suppress(StorageError):  # the folder above may not be readable
        train = [entry for entry in source_files.entries(os.path.dirname(folder) or ".") if splits.trains(entry.name)]
        known = images.classes_of([entry.path for entry in train if entry.is_folder])
        if known and known != names:
            _log.warning(
                "%s has the classes %s, and %s next to it %s: a class has other numbers there. Pass the schema "
                "(--schema) of what was written of it, or the folder of both to write them together.",
                folder,
                ", ".join(names[:5]) + ", ..." * (len(names) > 5),
                train[0].name,
                ", ".join(known[:5]) + ", ..." * (len(known) > 5),
            )


def write_each(
    place: Storage,
    places: Mapping[str, Storage],
    runs: Mapping[str, Callable[[], Manifest]],
    *,
    job: dict[str, Any],
    schema: Schema,
    exists: str,
) -> dict[str, Manifest]:
    """Write splits one after the other; an interrupted run resumes with those that are not finished."""
    if manifests.NAME in place.names():
        raise ConfigError(
            f"{place.url} holds one set of examples, and splits would be below it. Choose another directory, or "
            "remove what is there."
        )
    with place.lock():
        journal = Journal(place, {**job, "exists": exists})
        goes_on = not journal.is_new and exists != "overwrite"
        finished = {}
        if exists != "overwrite":  # whose manifests may be damaged
            finished = {name: read_manifest(at) for name, at in places.items() if manifests.NAME in at.names()}
        if finished and exists == "raise" and not goes_on:
            raise ConfigError(
                f"{places[next(iter(finished))].url} holds examples already. Choose another directory, or pass "
                "exists='overwrite' (--overwrite) to replace all splits, or exists='keep' (--keep) to leave these.",
                name="exists",
                received=exists,
                path=places[next(iter(finished))].url,
            )
        if goes_on or len(finished) < len(places):
            for name, manifest in finished.items():
                if manifest.schema.to_json() != schema.to_json():
                    raise ConfigError(
                        f"{places[name].url} holds examples with another schema than that of the "
                        "examples to be written next to it. "
                        "Pass exists='overwrite' (--overwrite) to write all splits anew.",
                        name="schema",
                        path=places[name].url,
                    )
            if not goes_on:
                journal.begin(1)
        done = {name: finished[name] if name in finished else run() for name, run in runs.items()}
        journal.end()
    return done


def summed(progress: Progress | None, sources: Mapping[str, Source]) -> dict[str, Progress | None]:
    """Return for each split a function that reports the progress of all splits together."""
    counts = [source.count for source in sources.values()]
    total = None if None in counts else sum(count or 0 for count in counts)
    last = dict.fromkeys(sources, (0, 0))

    def of(name: str) -> Progress:
        def report(examples: int, _: int | None, written: int) -> None:
            assert progress is not None
            last[name] = (examples, written)
            progress(sum(e for e, _ in last.values()), total, sum(b for _, b in last.values()))

        return report

    return {name: None if progress is None else of(name) for name in sources}
