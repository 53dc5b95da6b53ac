"""Shares that change while batches are cut ahead: the inputs of two workers, in one process."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster.shares import Share, Shares
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.training.global_batches import Input
from tfdist.training.replica import batch_rows

pytestmark = pytest.mark.quick

BATCH, BATCHES, LAST = 10, 12, 7  # the last batch has fewer rows
EXAMPLES = BATCH * (BATCHES - 1) + LAST
A, B, C = Shares((1, 1)), Shares((4, 1)), Shares((1, 9))
AHEAD = 4


class Worker:
    """The input of one of two workers, and how many batches its source has given."""

    def __init__(self, place: int, shares: Shares, *, endless: bool = False) -> None:
        self.place, self.given = place, 0

        def batches() -> Iterator[Any]:
            for number in range(BATCHES):
                self.given += 1
                yield np.arange(number * BATCH, min((number + 1) * BATCH, EXAMPLES))

        data = tf.data.Dataset.from_generator(batches, output_signature=tf.TensorSpec([None], tf.int64))
        data = data.repeat() if endless else data
        self.input = Input(
            data,
            batches=None if endless else BATCHES,
            share=Share(place, 1, shares),
            workers=Workers(),
            moves=True,
        )

    def recut(self, shares: Shares) -> None:
        self.input.recut(Share(self.place, 1, shares))

    def wait_for(self, batches: int) -> None:
        deadline = time.monotonic() + 60
        while self.given < batches:
            assert time.monotonic() < deadline, f"the source has given {self.given} batches of {batches}"
            time.sleep(0.01)


@pytest.fixture
def workers(request: pytest.FixtureRequest) -> Iterator[list[Worker]]:
    found = [Worker(place, A, **getattr(request, "param", {})) for place in (0, 1)]
    yield found
    for one in found:
        one.input.end()


def taken(epochs: Sequence[Iterator[Any]], count: int) -> list[list[list[int]]]:
    """The examples of each worker in the next batches."""
    found = []
    for _ in range(count):
        parts = []
        for epoch in epochs:
            batch = next(epoch)
            rows, data = batch.layout.slices(batch.tensors)[0]
            parts.append(data.numpy().tolist()[: int(rows)])
        found.append(parts)
    return found


def require(batches: list[list[list[int]]], shares: Sequence[Shares], *, first: int = 0) -> None:
    """Each batch is in as many parts as its shares say, and has every example once."""
    for number, (parts, cut_by) in enumerate(zip(batches, shares, strict=True), first):
        begin = number % BATCHES * BATCH
        whole = list(range(begin, min(begin + BATCH, EXAMPLES)))
        bounds = cut_by.bounds(len(whole))
        assert parts == [whole[bounds[0] : bounds[1]], whole[bounds[1] :]], f"batch {number}"


def test_a_change_holds_from_the_same_batch_however_far_workers_have_cut_ahead(workers: list[Worker]) -> None:
    epochs = [iter(one.input) for one in workers]
    before = taken(epochs, 3)
    workers[1].wait_for(3 + AHEAD)  # worker 0 may have cut nothing
    for one in workers:
        one.recut(B)
        assert one.input.changes_at == 3 + AHEAD
    require(before + taken(epochs, BATCHES - 3), [A] * 7 + [B] * 5)
    assert [next(epoch, None) for epoch in epochs] == [None, None]
    assert [one.input.changes_at for one in workers] == [None, None]
    require(taken([iter(one.input) for one in workers], BATCHES), [B] * BATCHES)


def test_a_change_holds_from_the_next_epoch_at_the_latest(workers: list[Worker]) -> None:
    epochs = [iter(one.input) for one in workers]
    before = taken(epochs, BATCHES - 2)
    for one in workers:
        one.recut(B)
        assert one.input.changes_at == BATCHES + 2
    require(before + taken(epochs, 2), [A] * BATCHES)
    assert [one.input.changes_at for one in workers] == [None, None]
    require(taken([iter(one.input) for one in workers], BATCHES), [B] * BATCHES)


@pytest.mark.parametrize("workers", [{"endless": True}], indirect=True)
def test_a_change_may_follow_before_the_last_one_holds(workers: list[Worker]) -> None:
    epochs = [iter(one.input) for one in workers]
    before = taken(epochs, 1)
    for one in workers:
        one.recut(B)
    before += taken(epochs, 1)
    workers[0].wait_for(2 + AHEAD)
    for one in workers:
        one.recut(C)
    require(before + taken(epochs, BATCHES), [A] * 5 + [B] + [C] * 8)


def test_training_resumes_in_the_middle_of_a_change(workers: list[Worker]) -> None:
    for one in workers:
        one.recut(B)
        one.input.resume_change(A, 7)
        assert one.input.changes_at == 7
    taken([iter(one.input) for one in workers], BATCHES)  # an epoch that is replayed
    epochs = [iter(one.input) for one in workers]
    taken(epochs, 5)
    assert [one.input.changes_at for one in workers] == [7, 7]
    found = taken(epochs, 1)
    for one in workers:
        one.input.note_trained()
    require(found + taken(epochs, BATCHES - 6), [A] * 2 + [B] * 5, first=5)
    require(taken([iter(one.input) for one in workers], BATCHES), [B] * BATCHES)


@pytest.mark.parametrize("weights", [(1001, 2999, 96), (1, 16_383), (3, 1)])
def test_a_graph_cuts_a_large_batch_as_shares_say(weights: tuple[int, ...]) -> None:
    shares = Shares(weights)
    edges = tf.constant(shares.edges)
    for rows in (0, 2, 4096, 131_072, 1_000_000, 2**31 - 1):
        assert batch_rows.uneven_bounds(tf.constant(rows), edges).numpy().tolist() == list(shares.bounds(rows))


def test_a_graph_cuts_a_large_batch_for_many_equal_replicas() -> None:
    share = Shares.equal(1000).all
    for rows in (7, 2_147_483, 3_000_000, 2**31 - 2):
        data = tf.zeros([rows, 0])
        assert batch_rows.bounds_of(data, share).numpy().tolist() == list(share.shares.bounds(rows))
