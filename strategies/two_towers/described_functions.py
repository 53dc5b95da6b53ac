"""Descriptions and names of the functions of installed packages, as words and their numbers."""

import re
from collections import Counter

import numpy as np

from tfdist.testing.installed_texts import python_files

SEED, WORDS, PARTS = 17, 24, 6
FUNCTION = re.compile(rb'def (\w+)\([^)]*\)[^:\n]*:\n\s+r?"""(.+?)(?:\n\s*\n|""")', re.DOTALL)


def functions(packages: list[str]) -> list[tuple[list[bytes], list[bytes]]]:
    """Return the words of the first paragraph and the parts of the name of each function, a name once."""
    found = {}
    for package in packages:
        for path in python_files(package):
            for name, text in FUNCTION.findall(path.read_bytes()):
                if not name.startswith((b"test", b"__")):
                    found.setdefault(name, text)
    order = np.random.default_rng(SEED).permutation(len(found))
    names, texts = list(found), list(found.values())
    return [(words(texts[index])[:WORDS], words(names[index])[:PARTS]) for index in order]


def words(text: bytes) -> list[bytes]:
    return re.findall(rb"[a-z]+|[0-9]+", text.lower())


def vocabulary(known: list[list[bytes]]) -> dict[bytes, int]:
    """Return numbers of the words that two of the lists have, from 2 on; they are the same in every process."""
    spread = Counter(word for one in known for word in dict.fromkeys(one))  # a set has an order of its own in each
    return {word: index for index, (word, times) in enumerate(spread.most_common(), start=2) if times >= 2}


def numbered(lists: list[list[bytes]], numbers: dict[bytes, int], width: int) -> np.ndarray:
    """Return rows of numbers: 1 for a word that has none, 0 where no word is."""
    rows = np.zeros((len(lists), width), np.int32)
    for row, one in zip(rows, lists, strict=True):
        row[: len(one)] = [numbers.get(word, 1) for word in one]
    return rows


def by_overlap(pairs: list[tuple[list[bytes], list[bytes]]], candidates: int, k: int) -> float:
    """Return the rate at which the right name is among the k that share most of their parts with the description."""
    rng, right = np.random.default_rng(SEED), 0.0
    for text, name in pairs:
        others = [pairs[index][1] for index in rng.integers(len(pairs), size=candidates - 1)]
        own, *rest = (len({*text} & {*one}) / max(1, len(one)) for one in [name, *others])
        better, equal = (sum(holds) for holds in ((one > own for one in rest), (one == own for one in rest)))
        right += min(1.0, max(0.0, (k - better) / (1 + equal)))
    return right / len(pairs)
