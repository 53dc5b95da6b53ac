"""A matrix of words by functions of installed packages, with held-out entries, and a judge of factors."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from tfdist.testing.installed_texts import python_files

RANKED = 20  # words, of a piece


class Counts(NamedTuple):
    """Entries of a matrix. Rows and columns are numbered by their number of entries, the fullest first."""

    rows: np.ndarray
    columns: np.ndarray
    times: np.ndarray
    words: list[str]  # of the columns


def pieces(packages: list[str]) -> Iterator[Counter[bytes]]:
    """Count the words of each function and class of the packages; a part of a name is a word."""
    for package in packages:
        for path in python_files(package):
            for text in re.split(rb"\n(?= *(?:def|class) )", path.read_bytes().lower()):
                yield Counter(re.findall(rb"[a-z]{3,}", text))


def count(packages: list[str], least: int) -> Counts:
    """Count the words that occur in at least this many pieces, in each piece."""
    found = [piece for piece in pieces(packages) if len(piece) >= 5]
    spread = Counter(word for piece in found for word in piece)
    words = [word for word, times in spread.most_common() if times >= least]
    if len(words) <= RANKED:
        sys.exit(f"{len(words)} words stand in {least} pieces or more, and {RANKED} are ranked: pass a smaller --least")
    number = {word: index for index, word in enumerate(words)}
    kept = [[(number[word], times) for word, times in piece.items() if word in number] for piece in found]
    kept.sort(key=len, reverse=True)
    entries = [(row, *entry) for row, piece in enumerate(kept) for entry in piece]
    rows, columns, times = np.array(entries, np.int32).T
    return Counts(rows, columns, times, [word.decode() for word in words])


def learnt_from(table: Counts, alpha: float, dtype: str, rng: np.random.Generator) -> tuple[Any, ...]:
    """Return rows, columns and weights of what is learnt from, which entries are held out, and the matrix's shape."""
    held = rng.random(len(table.rows)) < 0.1
    weights = alpha * table.times[~held].astype(dtype)
    return table.rows[~held], table.columns[~held], weights, held, (int(table.rows.max()) + 1, len(table.words))


def recall(table: Counts, held: np.ndarray, scores: Callable[[np.ndarray], np.ndarray], k: int = RANKED) -> float:
    """Return the part of the held-out entries among the k best words that a piece is not known to have."""
    every = np.unique(table.rows[held])
    some = every[:: max(1, len(every) // 2000)]
    place = np.full(int(table.rows.max()) + 1, -1)
    place[some] = np.arange(len(some))
    entries, guessed = np.stack([place[table.rows], table.columns]), scores(some)
    known, wanted = np.zeros((2, *guessed.shape), bool)
    for mark, which in ((known, ~held), (wanted, held)):
        mark[tuple(entries[:, which & (entries[0] >= 0)])] = True
    best = np.argpartition(np.where(known, np.inf, -guessed), k, axis=1)[:, :k]
    return float(np.take_along_axis(wanted, best, axis=1).sum() / wanted.sum())
