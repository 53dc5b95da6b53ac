"""Before a function runs for the first time, workers compare what it will reduce: other models never meet."""

import itertools
from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives import keys
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.errors import DisagreementError

_MOST_DIMENSIONS = 29  # of a variable, that are compared


def relative_paths(paths: Sequence[str]) -> list[str]:
    """Return the paths of a model's variables, with Keras' counters starting at the lowest in the model.

    Keras numbers unnamed objects per process, which differs between workers of which one has built another model
    before.

    Example:
        >>> relative_paths(["sequential_3/dense_7/kernel", "sequential_3/dense_8/kernel"])
        ['sequential/dense/kernel', 'sequential/dense_1/kernel']
    """
    split = [[_counted(part) for part in path.split("/")] for path in paths]
    lowest: dict[str, int] = {}
    for stem, number in itertools.chain.from_iterable(split):
        lowest[stem] = min(number, lowest.get(stem, number))

    def name(stem: str, number: int) -> str:
        return stem if number == lowest[stem] else f"{stem}_{number - lowest[stem]}"

    return ["/".join(name(*part) for part in parts) for parts in split]


def _counted(part: str) -> tuple[str, int]:
    stem, _, digits = part.rpartition("_")
    return (stem, int(digits)) if stem and digits.isdecimal() else (part, 0)


def require_alike_variable(workers: Workers, path: str, shape: Sequence[int], dtype: tf.DType) -> None:
    """Compare a new variable's shape and dtype on all workers before the chief's value travels.

    TensorFlow ends all collectives of a process for good where shapes differ.
    """
    mine = [dtype.as_datatype_enum, len(shape), *shape[:_MOST_DIMENSIONS]]
    # as long as nothing else that workers compare: one that makes no variable now is told so
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
    """Which functions these workers have found to be alike."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._alike: set[int] = set()

    def require_alike(self) -> None:
        """Compare what the function being traced has reduced so far with the other workers', once for each content."""
        mine = keys.current_signature()
        if self._workers.count == 1 or mine is None or not mine.entries or mine.digest in self._alike:
            return
        with tf.init_scope():
            digests = self._workers.gather([mine.digest])[:, 0]
            if (digests == digests[0]).all():
                self._alike.add(mine.digest)
                return
            lists = self._exchange(mine.entries)
        other = next(worker for worker in range(self._workers.count) if digests[worker] != digests[0])
        position, first, second = keys.first_difference(lists[0], lists[other])
        raise DisagreementError(
            f"workers run different functions: at reduction {position + 1} worker 0 has [{first}] and worker {other} "
            f"has [{second}]. Every worker must build the same model, with its variables in the same order, and "
            "compile it alike.",
            name=first,
            received=second,
            workers=(0, other),
        )

    def _exchange(self, entries: list[str]) -> list[list[str]]:
        text = "\n".join(entries).encode()
        lengths = self._workers.gather([len(text)])[:, 0]
        table = self._workers.gather(list(text.ljust(int(lengths.max()), b"\0")))
        return [bytes(row[:length].tolist()).decode().split("\n") for row, length in zip(table, lengths, strict=True)]
