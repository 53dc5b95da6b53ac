"""The treatment of examples that a directory has before it is written: keep them, append to them, or refuse."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.data.format import data_manifest as manifests
from tfdist.data.format.data_manifest import Manifest, read_manifest
from tfdist.data.format.revisions import written_in
from tfdist.data.format.schema import Schema
from tfdist.data.writing import journal as journals
from tfdist.errors import ConfigError
from tfdist.storage.directory import Storage

_log = logging.getLogger(__name__)


def kept(place: Storage, exists: str) -> Manifest | None:
    """Return the manifest of existing examples that stay; None if some are to be written."""
    names = () if exists == "overwrite" else place.names()
    if manifests.NAME in names:
        if exists == "append":
            return None
        if exists == "keep":
            return Manifest.from_bytes(place.read(manifests.NAME))
        if journals.NAME in names:  # of an interrupted overwriting, perhaps with the same examples
            return None
        raise taken(place)
    ours = [name for name in names if written_in(name)]
    if ours and journals.NAME not in names:
        raise ConfigError(
            f"{place.url} has {ours[0]} but no {manifests.NAME}, so it was not written here. Choose another "
            "directory, or pass exists='overwrite' (--overwrite) to replace it.",
            name=ours[0],
            path=place.url,
        )
    return None


def warn_of_others(examples: Any, found: Manifest, place: Storage) -> None:
    """Warn if arrays are obviously not the examples that a directory keeps, as after a change of the script."""
    if not isinstance(examples, Mapping):
        return
    rows = {values.shape[0] for values in examples.values() if getattr(values, "shape", ())}
    if set(examples) != set(found.schema) or rows - {found.examples}:
        _log.warning(
            "%s keeps its %d examples (%s), and those that are given differ. If they are to replace the old ones, "
            "pass exists='overwrite' once, or remove the directory.",
            place.url,
            found.examples,
            ", ".join(found.schema),
        )


def base_of(place: Storage, exists: str, schema: Schema | None, label: str | None) -> Manifest | None:
    """Return the manifest that is appended to; None if nothing is appended, or the directory is empty."""
    if exists != "append":
        return None
    names = place.names()
    if manifests.NAME not in names:
        if others := [name for name in names if not written_in(name) and name != journals.NAME]:
            raise ConfigError(
                f"{place.url} has {others[0]} and no {manifests.NAME}, so there is nothing that could be appended to. "
                "`tfdist data index` makes a directory of TFRecord files; otherwise choose another one.",
                name="exists",
                received="append",
                path=place.url,
            )
        return None
    found = read_manifest(place)
    if schema is not None and schema != found.schema:
        raise ConfigError(
            f"the schema differs from the schema of {place.url}, to which the examples are to be "
            "appended. Leave schema (--schema) out.",
            name="schema",
            path=place.url,
        )
    if label not in (None, found.label):
        raise ConfigError(
            f"label is {label!r}; {place.url} has the label {found.label!r}. Leave it out.",
            name="label",
            received=label,
        )
    return found


def require_one_set(splits: Sequence[str], exists: str) -> None:
    """Refuse to append several splits at once: after an interruption some would be appended again."""
    if splits and exists == "append":
        raise ConfigError(
            f"exists is 'append', and there are the splits {', '.join(splits)}. Append one at a time, each to its own "
            f"directory: split={splits[0]!r} (--split).",
            name="exists",
            received=exists,
        )


def taken(place: Storage) -> ConfigError:
    return ConfigError(
        f"{place.url} holds examples already. Choose another directory, or pass exists='overwrite' "
        "(--overwrite) to replace them, exists='append' (--append) to add to them, or exists='keep' to leave them.",
        name="exists",
        path=place.url,
    )
