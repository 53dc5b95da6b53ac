"""Detection of the library that wrote the files of a path."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tfdist.data.foreign.array_records import ArrayRecords
from tfdist.data.foreign.arrow_files import ArrowFiles, open_saved
from tfdist.data.foreign.foreign_files import EXAMPLES, Files, Foreign, files_of
from tfdist.data.foreign.json_lines import JsonLines
from tfdist.data.foreign.litdata_chunks import open_litdata
from tfdist.data.foreign.lmdb_files import open_lmdb
from tfdist.data.foreign.mds_shards import open_mds
from tfdist.data.foreign.raw_records import RawRecords
from tfdist.data.foreign.tar_shards import TarShards
from tfdist.data.foreign.token_files import open_tokens
from tfdist.data.format import splits
from tfdist.data.sources.compressed_files import HEAD_BYTES, kind_of
from tfdist.data.sources.paths import alike
from tfdist.data.sources.source_files import spelled
from tfdist.data.sources.tables.arrow_ipc import has_field, is_saved
from tfdist.data.writing import journal
from tfdist.errors import ConfigError, CorruptDataError

_SUFFIXES: dict[str, tuple[Callable[[Files], Foreign], str]] = {
    ".tar": (TarShards, "tar"),
    ".jsonl": (JsonLines, "jsonl"),
    ".arrow": (ArrowFiles, "arrow"),
    ".feather": (ArrowFiles, "arrow"),
}
# names of documents for people, which may be in a folder beside data
_DOCUMENT = re.compile(
    r"(readme|licen[cs]e|notice|citation|authors|changes|changelog|(md5|sha\d+)sums?|checksums?)\b.*|.*\.(md|rst|pdf)"
)
_COMPRESSED = re.compile(r".*\.(tgz|(tar|jsonl|arrow|feather)\.(gz|bz2|xz|zst))")
_NAMED = 3  # number of unexpected files that an error names
RIEGELI = bytes.fromhex("83af70d10d884a3f")  # the first bytes of ArrayRecord files


def open_foreign(directory: Any, records: str = EXAMPLES) -> Foreign | None:
    """Open examples in files of another library; None for TFRecord files of examples, and for any other path."""
    text = os.path.expanduser(spelled(directory))
    if "://" in text:
        if records != EXAMPLES:
            raise ConfigError(f"records={records!r} is for local files, and directory is {text!r}.", name="records")
        return None
    paths = [path for path in files_of(text) if not (os.path.isdir(text) and _DOCUMENT.fullmatch(path.name.lower()))]
    if array_records := _array_records(text, paths):
        return ArrayRecords(Files(array_records, "array_record"), records)
    if records != EXAMPLES:
        if not paths:
            raise ConfigError(f"directory is {directory!r}; there is no file.", name="directory", path=text)
        return RawRecords(paths, records)
    for opener in (_by_index, _saved_dataset, _token_file, open_lmdb):
        if (found := opener(Path(text))) is not None:
            return found
    if paths and all(_COMPRESSED.fullmatch(path.name.lower()) and not _is_tfrecord(path) for path in paths):
        raise ConfigError(
            f"{paths[0]} is compressed, and nothing can be found in the middle of it. Decompress it, and pass what it "
            "contains: gunzip, say.",
            path=str(paths[0]),
        )
    kinds = {path.suffix.lower() for path in paths}
    if journal.is_in(Path(text)):  # a directory of tfdist whose writing has not ended
        return None
    if kinds.isdisjoint(_SUFFIXES) or (len(kinds) > 1 and any(_is_tfrecord(path) for path in paths)):
        return None
    if len(kinds) > 1:
        raise _mixed(text, paths)
    _need_one_set(text, paths)
    make, kind = _SUFFIXES[kinds.pop()]
    return make(Files(paths, kind))


def _is_tfrecord(path: Path) -> bool:
    with open(path, "rb") as file:
        return bool(kind_of(file.read(HEAD_BYTES)))


def _mixed(text: str, paths: list[Path]) -> ConfigError:
    """Return the error for a folder, or a wildcard, with files of several kinds."""
    known = sorted({path.suffix for path in paths if path.suffix.lower() in _SUFFIXES})
    others = [path.name for path in paths if path.suffix not in known]
    folder = text if os.path.isdir(text) else os.path.dirname(text)
    ways = " or ".join(repr(os.path.join(folder, f"*{suffix}")) for suffix in known)
    named = [*(f"*{suffix}" for suffix in known), *others[:_NAMED], *(["..."] if len(others) > _NAMED else [])]
    return ConfigError(
        f"{text} has files of several kinds: {', '.join(named)}. Pass those that are meant: {ways}.", path=text
    )


def _array_records(text: str, paths: list[Path]) -> list[Path]:
    """Return the ArrayRecord files, if there are no others except the description files of TensorFlow Datasets."""
    found = [path for path in paths if _is_array_record(path)]
    names = {alike(path.name) for path in found}
    for path in paths if found else ():
        if path not in found and alike(path.name) in names:
            raise CorruptDataError(
                f"{path} has {path.stat().st_size} bytes and is not an ArrayRecord file, as {found[0].name} is: it was "
                "cut, or its writer was not closed yet.",
                path=str(path),
            )
    if len(found) < len(paths) - sum(path.name in splits.OF_TFDS for path in paths):
        return []
    _need_one_set(text, found, of_tfds=len(found) < len(paths))
    return found


def _is_array_record(path: Path) -> bool:
    with open(path, "rb") as file:
        return file.read(len(RIEGELI)) == RIEGELI


def _need_one_set(text: str, paths: list[Path], *, of_tfds: bool = False) -> None:
    """Refuse a folder with files of several splits, which may mix training and validation."""
    several = splits.by_word(list(map(str, paths)), of_tfds=of_tfds, where=text) if os.path.isdir(text) else {}
    if several:
        ways = [f"{text}/*{split}*" for split in several]
        raise ConfigError(
            f"{text} has files of several splits ({', '.join(several)}). Pass those that are meant: "
            f"{', '.join(ways)}; or {text}/*{paths[0].suffix} for all of them as one.",
            path=text,
        )


def _by_index(path: Path) -> Foreign | None:
    if has_field(path / "index.json", "shards"):
        return open_mds(path)
    return open_litdata(path) if has_field(path / "index.json", "chunks") else None


def _saved_dataset(path: Path) -> Foreign | None:
    if (path / "dataset_dict.json").is_file():
        inner = ", ".join(sorted(part.name for part in path.iterdir() if part.is_dir()))
        raise ConfigError(f"{path} has several splits; pass one of them: {inner}.", path=str(path))
    return open_saved(path) if is_saved(path) else None


def _token_file(path: Path) -> Foreign | None:
    base = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    index = base.with_name(base.name + ".idx")
    return open_tokens(base) if index.is_file() else None
