"""A battery for orders: workers, batch sizes and kills change no global batch. Without TensorFlow."""

import numpy as np

from tfdist.cluster.shares import Share, Shares
from tfdist.data.order.batch_positions import BatchChunks, Batches, Identity
from tfdist.data.order.epoch_orders import Order

SEED = 5


def global_batches(order: Order, *, size: int, workers: int, epoch: int = 0, start: int = 0) -> list[np.ndarray]:
    """The examples of each global batch from a position on, put together from what each worker reads."""

    def batches(start: int) -> Batches:
        return Batches(order.examples, size, "keep", start)

    parts = []
    for worker in range(workers):
        chunks = BatchChunks(order, SEED, batches, Share(worker, 1, Shares.equal(workers)), examples=2 * size)
        steps: list[np.ndarray] = []
        for number in range(chunks.count(start)):
            found = chunks(epoch=epoch, start=start, number=number)
            for row, pieces in zip(found.ids, found.slices, strict=True):
                count, first, last = pieces[0]
                steps.append(row[first:last][:count])
        parts.append(steps)
    assert len({len(steps) for steps in parts}) == 1, "workers have as many steps"
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def require_resumable(order: Order) -> None:
    """Read by 1, 2, 3 and 5 workers; kill after each batch, and go on with other workers and another batch size."""
    identity = Identity("d" * 32, order.name, SEED, order.examples)
    for epoch in (0, 1):
        whole = global_batches(order, size=7, workers=1, epoch=epoch)
        expected = np.concatenate(whole)
        assert len(expected) == order.examples
        for workers in (2, 3, 5):
            for one, other in zip(whole, global_batches(order, size=7, workers=workers, epoch=epoch), strict=True):
                assert one.tolist() == other.tolist(), f"{workers} workers"
        for killed in range(len(whole)):
            consumed = killed * 7
            position = identity.position(identity.state(epoch=epoch, consumed=consumed))
            assert (position.epoch, position.start) == (epoch, consumed)
            workers, size = (2, 5) if killed % 2 else (3, 11)
            rest = global_batches(order, size=size, workers=workers, epoch=epoch, start=consumed)
            assert np.concatenate(rest).tolist() == expected[consumed:].tolist(), f"killed after batch {killed}"
