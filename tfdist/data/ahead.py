"""Which examples stand in the coming batches, computed for many at once: every call of NumPy has its price."""

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np

from tfdist.data.order import Ids, Order

_EXAMPLES = 16384  # at once; of a full order NumPy takes a tenth of a microsecond for each, of 1024 at once half of one
_KEPT = 4  # batches are made by several threads, and not all of them are in the same stretch

#: step -> the first position of a batch, and the one behind its last; positions beyond the epoch are padding
Bounds = Callable[[int], tuple[int, int]]


class Ahead:
    """The examples of the batches of an epoch, the same as `Order.ids` returns. It may be used in several threads.

    Args:
        order: which example stands where.
        seed: of the order.

    Example:
        >>> from tfdist.data.order import Sequential
        >>> ahead = Ahead(Sequential(10), seed=0)
        >>> ahead.ids(epoch=0, step=2, steps=3, bounds=lambda step: (4 * step, 4 * step + 4), key=("any",)).tolist()
        [8, 9, 0, 1]
    """

    def __init__(self, order: Order, seed: int) -> None:
        self._order = order
        self._seed = seed
        self._kept: OrderedDict[object, list[Ids]] = OrderedDict()
        self._lock = threading.Lock()  # nobody computes what another thread is about to have

    def ids(self, *, epoch: int, step: int, steps: int, bounds: Bounds, key: tuple[object, ...]) -> Ids:
        """Return the examples of a batch, int64; at positions beyond the epoch those from its beginning.

        Args:
            epoch: 0 for the first.
            step: the batch.
            steps: number of batches.
            bounds: the positions of each batch.
            key: what tells ``bounds`` from other ones.
        """
        begin, end = bounds(step)
        together = max(1, _EXAMPLES // max(1, end - begin)) if step < steps - 1 else 1
        first = step - step % together
        stretch = (epoch, first, together, *key)
        with self._lock:
            if stretch not in self._kept:
                self._kept[stretch] = self._computed(
                    epoch, [bounds(s) for s in range(first, min(first + together, steps))]
                )
                while len(self._kept) > _KEPT:
                    self._kept.popitem(last=False)
            return self._kept[stretch][step - first]

    def _computed(self, epoch: int, spans: list[tuple[int, int]]) -> list[Ids]:
        positions = np.concatenate([np.arange(begin, end, dtype=np.int64) for begin, end in spans])
        ids = self._order.ids(seed=self._seed, epoch=epoch, positions=positions % self._order.examples)
        ids.flags.writeable = False  # batches share it
        return np.split(ids, np.cumsum([end - begin for begin, end in spans])[:-1])
