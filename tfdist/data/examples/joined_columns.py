"""Columns of the examples of several directories, each read in its own way. Loads no TensorFlow."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.fetch import PAYLOAD, Failures
from tfdist.data.examples.joined_examples import Joined
from tfdist.data.format.aligned_arrays import aligned

_Ids = NDArray[np.int64]
_Columns = tuple[dict[str, NDArray[Any]], NDArray[np.float32]]


class ColumnFetcher(Protocol):
    """Columns of examples by their numbers, of those that `Pipeline` reads."""

    failures: Failures
    skip: bool

    @property
    def examples(self) -> Examples:
        """The examples that it reads."""

    @property
    def names(self) -> list[str]:
        """The columns, in the order in which `__call__` returns them."""

    def __call__(self, ids: _Ids) -> _Columns:
        """Return the columns of examples, and the weight of each: 0 where another replaces a corrupt one."""

    def payloads(self, ids: _Ids) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return the examples as bytes of tf.train.Example, and their weights."""


class JoinedFetcher:
    """Asks the fetcher of each directory."""

    def __init__(self, examples: Joined, parts: list[ColumnFetcher], *, skip: bool) -> None:
        self.examples = examples
        self.failures = Failures()
        self.skip = skip
        self._parts = parts
        same = all(part.schema == examples.schema for part in examples.parts)
        is_parsed = any(PAYLOAD in part.names for part in parts) or not same
        self.names = [PAYLOAD] if is_parsed else list(examples.schema)

    def __call__(self, ids: _Ids) -> _Columns:
        if self.names == [PAYLOAD]:
            payloads, weight = self.payloads(ids)
            return {PAYLOAD: payloads}, weight
        if not len(ids):  # each of them has the same columns
            return self._parts[0](ids)
        weight = np.ones(len(ids), np.float32)
        columns: dict[str, NDArray[Any]] = {}
        for place, here in self.examples.by_part(ids):
            found, weight[here] = self._parts[place](ids[here] - self.examples.firsts[place])
            for name, values in found.items():
                if name not in columns:
                    make = np.empty if values.dtype == object else aligned
                    columns[name] = make((len(ids), *values.shape[1:]), values.dtype)
                columns[name][here] = values
        return columns, weight

    def payloads(self, ids: _Ids) -> tuple[NDArray[Any], NDArray[np.float32]]:
        found, weight = np.empty(len(ids), object), np.ones(len(ids), np.float32)
        for place, here in self.examples.by_part(ids):
            found[here], weight[here] = self._parts[place].payloads(ids[here] - self.examples.firsts[place])
        return found, weight
