"""Factorize a matrix of words and pieces of code by alternating least squares, in blocks over workers.

python strategies/least_squares/train.py
tfdist run --strategy multi-worker -n 2 strategies/least_squares/train.py

The matrix has a row for each function or class of the installed packages and a column for each word. It is implicit
feedback, like the purchases of customers. Each worker solves for its rows, and all workers gather the solutions. Then
they do the same for the columns.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import row_blocks
import tensorflow as tf
import word_counts

import tfdist

Gather = Callable[[np.ndarray], np.ndarray]  # gathers the rows of all workers


def gathering(strategy: tf.distribute.Strategy, workers: int) -> Gather:
    """Return a function that joins the rows of all workers, to which rows are assigned in turns."""

    def joined(own: tf.Tensor) -> tf.Tensor:
        return tf.distribute.get_replica_context().all_gather(tf.identity(own), axis=0)

    @tf.function
    def every(block: tf.Tensor) -> tf.Tensor:
        rows = tf.reshape(strategy.run(joined, (block,)), [workers, *block.shape])
        return tf.reshape(tf.transpose(rows, [1, 0, 2]), [-1, block.shape[1]])

    return (lambda block: every(tf.constant(block)).numpy()) if workers > 1 else np.asarray


def main() -> None:
    options = parse()
    strategy, cluster = tfdist.strategies.from_environment(), tfdist.cluster.from_environment()
    worker, workers = cluster.worker_index, cluster.num_workers
    if strategy.num_replicas_in_sync != workers:
        sys.exit(f"{strategy.num_replicas_in_sync} replicas on {workers} workers: pass --replicas-per-worker 1")
    table, rng = word_counts.count(options.packages, options.least), np.random.default_rng(options.seed)
    rows, columns, weights, held, shape = word_counts.learnt_from(table, options.alpha, options.dtype, rng)
    by_row = row_blocks.Block(rows, columns, weights, shape[0], worker, workers)
    by_column = row_blocks.Block(columns, rows, weights, shape[1], worker, workers)
    y = rng.normal(0, 0.01, (shape[1], options.factors)).astype(options.dtype)
    gather, seconds = gathering(strategy, workers), []
    for _ in range(options.sweeps):
        began = time.perf_counter(), time.process_time()
        x = gather(by_row.solve(y, options.regularization))
        y = gather(by_column.solve(x, options.regularization))
        seconds.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    x, y = x[: shape[0]], y[: shape[1]]
    if not cluster.is_chief:
        return
    found = word_counts.recall(table, held, lambda rows: x[rows] @ y.T)
    frequent = word_counts.recall(table, held, lambda rows: np.broadcast_to(-np.arange(len(y)), (len(rows), len(y))))
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
    parser.add_argument("--packages", nargs="+", default=packages, help="packages with the code; default: %(default)s")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"], help="default: %(default)s")
    for name, default, told in (
        ("--least", 20, "pieces of code in which a word must occur"),
        ("--factors", 32, "numbers for a piece, and for a word"),
        ("--sweeps", 10, "sweeps over all rows and columns"),
        ("--alpha", 2.0, "weight of an entry above that of a missing one, for each occurrence of the word"),
        ("--regularization", 1.0, "number that is added to the diagonal"),
        ("--seed", 17, "seed of the first factors, and of the tenth that is held out"),
        ("--output", Path("runs/least_squares"), "folder for the factors"),
    ):
        parser.add_argument(name, type=type(default), default=default, help=f"{told}; default: %(default)s")
    return parser.parse_args()


if __name__ == "__main__":
    main()
