"""Find the splits of a data set (train, validation, test) by the names of folders or files.

photos/train/cat/1.jpg, photos/test/cat/9.jpg         a folder per split
data/train-00000-of-00002.parquet, data/test.parquet  a word in the names of files
mnist-train.tfrecord-00000-of-00001                   as TensorFlow Datasets names its files
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfdist.errors import ConfigError

# word -> its place among splits; the first has the list of classes
_WORDS = {"train": 0, "training": 0, "validation": 1, "valid": 1, "val": 1, "dev": 1, "test": 2, "testing": 2}
#: TensorFlow Datasets keeps one of these next to its files
OF_TFDS = frozenset({"dataset_info.json", "features.json"})
_TFDS_FILE = re.compile(r".+-(?P<split>[^-.]+)\.\w+-\d+-of-\d+")


def is_word(name: str) -> bool:
    return name.lower() in _WORDS


def trains(name: str) -> bool:
    """Return whether a split is the training split."""
    return _WORDS.get(name.lower()) == 0


def ordered(names: Iterable[str]) -> list[str]:
    """Return the names of splits in order: train, validation, test, then others."""
    return sorted(names, key=lambda name: (_WORDS.get(name.lower(), len(_WORDS)), name))


def by_word(paths: Sequence[str], *, of_tfds: bool = False, where: str = "the folder") -> dict[str, list[str]]:
    """Return files by the splits that their names state; empty if they state no more than one split."""
    names = {path: os.path.basename(path) for path in paths}
    tfds = {path: _TFDS_FILE.fullmatch(name) if of_tfds else None for path, name in names.items()}

    def word(name: str) -> str:
        words = {word for word in re.split(r"[-_. ]", name.lower()) if word in _WORDS}
        return words.pop() if len(words) == 1 else ""

    said = {path: match["split"] if (match := tfds[path]) else word(name) for path, name in names.items()}
    found = {split for split in said.values() if split}
    if len(found) < 2:
        return {}
    if silent := [names[path] for path in paths if not said[path]]:
        raise ConfigError(
            f"{where} has files of several splits ({', '.join(ordered(found))}) and {silent[0]}, "
            "whose name says none. Name the files that are meant.",
            name="split",
            received=silent[0],
            path=where,
        )
    return {split: [path for path in paths if said[path] == split] for split in ordered(found)}


def chosen(several: Mapping[str, list[Any]], split: str | None, *, where: str) -> list[Any]:
    """Return the files of a split; refuse one that is not there, and none where there are several."""
    if split is None:
        raise ConfigError(
            f"{where} has files of several splits ({', '.join(several)}), and a directory is one of them. Choose it: "
            f"split={next(iter(several))!r} (--split); or `tfdist data write {where} DIRECTORY` writes all.",
            name="split",
            received=None,
            path=where,
        )
    if split not in several:
        held = f"the splits {', '.join(several)}" if several else "no splits, but one set of examples"
        raise ConfigError(
            f"split is {split!r}; the files in {where} are {held}.", name="split", received=split, path=where
        )
    return several[split]
