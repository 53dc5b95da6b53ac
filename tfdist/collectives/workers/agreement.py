"""Checks that workers are alike: what a function will reduce, before it runs for the first time, and texts."""

import hashlib
from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import traced
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.errors import DisagreementError

_MOST_DIMENSIONS = 29  # of a variable, that are compared


def require_alike_variable(workers: Workers, path: str, shape: Sequence[int], dtype: tf.DType) -> None:
    """Compare a new variable's shape and dtype on all workers before the chief's value travels.

    TensorFlow ends all collectives of a process for good if shapes differ.
    """
    mine = [dtype.as_datatype_enum, len(shape), *shape[:_MOST_DIMENSIONS]]
    # no other comparison has this length: a worker that makes no variable now gets an error that says so
    rows = workers.gather(mine + [0] * (2 + _MOST_DIMENSIONS - len(mine)))
    other = next((worker for worker, row in enumerate(rows) if (row != rows[0]).any()), None)
    if other is not None:
        first, second = (_described(rows[worker].tolist()) for worker in (0, other))
        raise DisagreementError(
            f"workers make different variables: worker 0 has {first} and worker {other} has {second}; on worker "
            f"{workers.index} it is {path}. Every worker must build the same model, with its variables in the same "
            "order."
        )


def _described(row: Sequence[int]) -> str:
    dtype, rank, *dimensions = row
    try:
        name = tf.as_dtype(dtype).name
    except TypeError:  # what another call has sent
        name = "another call"
    return f"{name} {tuple(dimensions[:rank])}"


class Signatures:
    """The signatures of the functions that these workers have found to be alike."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._alike: set[int] = set()

    def require_alike(self) -> None:
        """Compare the reductions so far of the function being traced with the other workers', once for each content."""
        mine = traced.current_signature()
        if self._workers.count == 1 or mine is None or not mine.entries or mine.digest in self._alike:
            return
        with tf.init_scope():
            digests = self._workers.gather([mine.digest])[:, 0]
            if (digests == digests[0]).all():
                self._alike.add(mine.digest)
                return
            lists = [text.split("\n") for text in _texts(self._workers, "\n".join(mine.entries))]
        other = next(worker for worker in range(self._workers.count) if digests[worker] != digests[0])
        position, first, second = traced.first_difference(lists[0], lists[other])
        raise DisagreementError(
            f"workers run different functions: at reduction {position + 1} worker 0 has [{first}] and worker {other} "
            f"has [{second}]. Every worker must build the same model, with its variables in the same order, and "
            "compile it alike.",
            name=first,
            received=second,
            workers=(0, other),
        )


def require_alike_text(workers: Workers, text: str, *, name: str, what: str, remedy: str) -> None:
    """Raise on all workers, with the text of each, unless all have the same one; every worker must call it."""
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    digests = workers.gather([int.from_bytes(digest, "little", signed=True)])[:, 0]
    others = [worker for worker, one in enumerate(digests) if one != digests[0]]
    if others:
        texts = _texts(workers, text)
        who = "; ".join(f"worker {worker}: {texts[worker]}" for worker in (0, *others))
        raise DisagreementError(f"{what} ({who}). {remedy}", name=name, received=text, workers=(0, *others))


def _texts(workers: Workers, mine: str) -> list[str]:
    text = mine.encode()
    lengths = workers.gather([len(text)])[:, 0]
    table = workers.gather(list(text.ljust(int(lengths.max()), b"\0")))
    return [bytes(row[:length].tolist()).decode() for row, length in zip(table, lengths, strict=True)]
