"""Factorise which words stand in which pieces of code: alternating least squares, in blocks over workers.

python strategies/least_squares/train.py
tfdist run --strategy multi-worker -n 2 strategies/least_squares/train.py

The matrix has a row for each function or class of the installed packages and a column for each word: implicit feedback,
as who bought what. Each worker solves for its rows, all workers gather the solutions, then the same for the columns.
"""

import argparse
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

import tfdist
from tfdist.testing.installed_texts import python_files

RANKED = 20  # words, of a piece
ENTRIES = 1 << 14  # of the matrix, that are solved at a time: their factors fit into a processor's cache


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
    """Return how often the words that stand in at least this many pieces stand in each."""
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


Batch = tuple[tf.Tensor, tf.Tensor]


def batches(
    rows: np.ndarray, columns: np.ndarray, weights: np.ndarray, height: int, worker: int, workers: int
) -> list[Batch]:
    """Return every Nth row, padded in batches of rows of near lengths; all workers have equally many, some empty."""
    order = np.argsort(rows, kind="stable")
    lengths = np.bincount(rows, minlength=-(-height // workers) * workers)
    begins, mine, found = np.cumsum(lengths) - lengths, np.arange(worker, len(lengths), workers), []
    while len(mine):
        longest = max(1, lengths[mine].max())
        some, mine = np.split(mine, [max(1, ENTRIES // longest)])
        real = np.arange(longest) < lengths[some, np.newaxis]
        at = order[np.where(real, begins[some, np.newaxis] + np.arange(longest), 0)]
        found.append((tf.constant(columns[at]), tf.constant(np.where(real, weights[at], 0))))
    return found


@tf.function(reduce_retracing=True)
def solve(factors: tf.Tensor, gram: tf.Tensor, columns: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Solve (Y'Y + Y'WY + regularisation) x = Y'(W + 1) for each row; W is 0, and 1 missing, where it is padded."""
    seen = tf.gather(factors, columns)
    right = tf.matmul(seen, (weights + tf.sign(weights))[..., tf.newaxis], transpose_a=True)
    lower = tf.linalg.cholesky(gram + tf.matmul(seen * weights[..., tf.newaxis], seen, transpose_a=True))
    return tf.linalg.cholesky_solve(lower, right)[..., 0]


def half(factors: tf.Tensor, mine: list[Batch], regularisation: float, gather: Callable[[tf.Tensor], Any]) -> tf.Tensor:
    """Return the factors of all rows, of which this worker solves its own."""
    gram = tf.matmul(factors, factors, transpose_a=True)
    gram += regularisation * tf.eye(factors.shape[1], dtype=factors.dtype)
    return gather(tf.concat([solve(factors, gram, *batch) for batch in mine], axis=0))


def gathering(strategy: tf.distribute.Strategy, workers: int) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return what joins the rows of all workers, which are dealt out in turns."""

    def joined(own: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(tf.identity(own), axis=0)

    @tf.function
    def every(block: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(strategy.run(joined, (block,)), [workers, *block.shape])
        return tf.reshape(tf.transpose(rows, [1, 0, 2]), [-1, block.shape[1]])

    return every if workers > 1 else tf.identity


def recall(table: Counts, held: np.ndarray, scores: Callable[[np.ndarray], np.ndarray], k: int = RANKED) -> float:
    """Return which part of the held entries is among the k best words that a piece is not known to have."""
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


def main() -> None:
    options = parse()
    strategy, cluster = tfdist.strategies.from_environment(), tfdist.cluster.from_environment()
    worker, workers = cluster.worker_index, cluster.num_workers
    if strategy.num_replicas_in_sync != workers:
        sys.exit(f"{strategy.num_replicas_in_sync} replicas on {workers} workers: pass --replicas-per-worker 1")
    table, rng = count(options.packages, options.least), np.random.default_rng(options.seed)
    rows, columns, weights, held, shape = learnt_from(table, options.alpha, options.dtype, rng)
    by_row = batches(rows, columns, weights, shape[0], worker, workers)
    by_column = batches(columns, rows, weights, shape[1], worker, workers)
    y = tf.constant(rng.normal(0, 0.01, (shape[1], options.factors)), options.dtype)
    gather, seconds = gathering(strategy, workers), []
    for _ in range(options.sweeps):
        began = time.perf_counter(), time.process_time()
        x = half(y, by_row, options.regularisation, gather)
        y = half(x, by_column, options.regularisation, gather)
        seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    x, y = x[: shape[0]].numpy(), y[: shape[1]].numpy()
    if not cluster.is_chief:
        return
    found = recall(table, held, lambda rows: x[rows] @ y.T)
    frequent = recall(table, held, lambda rows: np.broadcast_to(-np.arange(len(y)), (len(rows), len(y))))
    print(f"matrix               {len(x):,} pieces of code, {len(y):,} words, {len(table.rows):,} entries")
    print(f"a sweep              {np.median(seconds[1:] or seconds, axis=0)[0]:.3f} s on {workers} workers")
    print(f"recall of 20 words   {found:.4f}; of the most frequent {frequent:.4f}")
    unit = y / np.linalg.norm(y, axis=1, keepdims=True)
    for word in (one for one in ("gradient", "thread", "matrix") if one in table.words):
        near = np.argsort(-unit @ unit[table.words.index(word)])[1:7]
        print(f"near {word:<15} {', '.join(table.words[one] for one in near)}")
    options.output.mkdir(parents=True, exist_ok=True)
    np.savez(options.output / "factors.npz", pieces=x, words=y, names=np.array(table.words), seconds=seconds)
    print(f"wrote                {options.output / 'factors.npz'}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    packages = ["keras", "numpy", "scipy", "sklearn"]
    parser.add_argument("--packages", nargs="+", default=packages, help="whose code is read; default: %(default)s")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="default: %(default)s")
    for name, default, told in (
        ("--least", 20, "pieces in which a word must stand"),
        ("--factors", 32, "numbers for a piece, and for a word"),
        ("--sweeps", 10, "over all rows and columns"),
        ("--alpha", 2.0, "weight of an entry above that of a missing one, for each time that the word stands there"),
        ("--regularisation", 1.0, "what is added to the diagonal"),
        ("--seed", 17, "of the first factors, and of the tenth that is held out"),
        ("--output", Path("runs", Path(__file__).parent.name), "folder for the factors"),
    ):
        parser.add_argument(name, type=type(default), default=default, help=f"{told}; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
