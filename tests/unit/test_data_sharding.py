"""Batches and their parts: every worker gets as many steps, all parts together are the batch, whatever their number."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.cluster.shares import Share, Shares
from tfdist.data.order.batch_positions import TAILS, WHOLE, BatchChunks, Batches, Identity, Position
from tfdist.data.order.epoch_orders import Full
from tfdist.errors import ConfigError, ConfigTypeError

IDENTITY = Identity(digest="5f" * 16, order="full", seed=17, examples=103)


@given(
    examples=st.integers(1, 300),
    size=st.integers(1, 40),
    parts=st.integers(1, 8),
    tail=st.sampled_from(TAILS),
    start=st.integers(0, 300),
)
@settings(max_examples=200, deadline=None)
def test_parts_of_all_batches_are_every_position_once(
    examples: int, size: int, parts: int, tail: str, start: int
) -> None:
    start = min(start, examples)
    batches = Batches(examples, size, tail, start)
    seen = []
    for step in range(batches.steps):
        begin, end = batches.bounds(step)
        assert end - begin == size or tail == "keep"
        pieces = list(itertools.pairwise(Shares.equal(parts).bounds(end - begin)))
        assert max(b - a for a, b in pieces) - min(b - a for a, b in pieces) <= 1
        seen += [begin + row for first, last in pieces for row in range(first, last)]
    kept = [position for position in seen if position < examples]
    whole = (examples - start) // size * size if tail == "drop" else examples - start
    assert kept == list(range(start, start + whole))
    assert len(seen) - len(kept) == (batches.steps * size - whole if tail == "pad" else 0)


@given(examples=st.integers(1, 200), first=st.integers(1, 30), second=st.integers(1, 30), steps=st.integers(0, 30))
@settings(max_examples=100, deadline=None)
def test_another_batch_size_goes_on_behind_what_was_consumed(
    examples: int, first: int, second: int, steps: int
) -> None:
    before = Batches(examples, first)
    assert before.consumed(before.steps) == examples, "padding is not consumed"
    steps = min(steps, before.steps)
    after = Batches(examples, second, start=before.consumed(steps))
    rest = [row for step in range(after.steps) for row in range(*after.bounds(step)) if row < examples]
    assert rest == list(range(min(steps * first, examples), examples))


def test_a_state_is_small_json_and_comes_back() -> None:
    state = IDENTITY.state(epoch=10**9, consumed=100)
    text = json.dumps(state)
    assert len(text) < 1000
    position = IDENTITY.position(json.loads(text))
    assert (position.epoch, position.start) == (10**9, 100)


def test_a_state_at_the_end_of_an_epoch_is_the_next_one() -> None:
    position = IDENTITY.position(IDENTITY.state(epoch=4, consumed=103))
    assert (position.epoch, position.start) == (5, 0)


@pytest.mark.parametrize(
    ("changed", "kind", "name"),
    [
        ({"digest": "00"}, ConfigError, "digest"),
        ({"seed": 1}, ConfigError, "seed"),
        ({"order": "none"}, ConfigError, "order"),
        ({"examples": 7}, ConfigError, "examples"),
        ({"version": 99}, ConfigError, "state"),
        ({"consumed": 104}, ConfigError, "consumed of the state"),
        ({"consumed": -1}, ConfigError, "consumed of the state"),
        ({"epoch": -1}, ConfigError, "epoch of the state"),
        ({"epoch": True}, ConfigTypeError, "epoch of the state"),
        ({"epoch": "1"}, ConfigTypeError, "epoch of the state"),
    ],
)
def test_a_state_of_something_else_is_refused(changed: dict[str, object], kind: type[ConfigError], name: str) -> None:
    (received,) = changed.values()
    with refused(kind, name=name, received=repr(received)):
        IDENTITY.position({**IDENTITY.state(epoch=0, consumed=0), **changed})


@pytest.mark.parametrize(
    "state", [None, [], {}, {"epoch": 1}, "state", {**IDENTITY.state(epoch=0, consumed=0), "x": 1}]
)
def test_what_is_no_state_is_refused(state: object) -> None:
    with refused(ConfigError, name="state", received=repr(state)):
        IDENTITY.position(state)


def test_an_iteration_that_was_broken_off_begins_again_and_one_that_ended_makes_way() -> None:
    position = Position(epoch=2, start=40)
    position.batches = 3
    position.begin(counted=True)
    assert (position.epoch, position.start, position.batches) == (2, 40, 0)
    position.is_last = True
    position.begin(counted=True)
    assert (position.epoch, position.start, position.is_last) == (3, 0, False)
    position.begin(counted=False)
    assert position.is_uncounted
    position.is_last = True
    position.lead_to(Position(epoch=7, start=5, batches=2))
    assert position == Position(epoch=7, start=5)


def test_numpy_numbers_in_a_state_are_taken() -> None:
    state = {**IDENTITY.state(epoch=0, consumed=0), "epoch": np.int64(2), "consumed": np.int64(5)}
    assert IDENTITY.position(state).start == 5


@given(
    examples=st.integers(1, 200),
    size=st.integers(1, 30),
    weights=st.lists(st.integers(1, 4), min_size=1, max_size=12),
    replicas=st.integers(1, 3),
    tail=st.sampled_from(TAILS),
    start=st.integers(0, 60),
    together=st.integers(1, 100),
)
@settings(max_examples=150, deadline=None)
def test_workers_together_read_the_batches_of_one_each_example_once(
    examples: int, size: int, weights: list[int], replicas: int, tail: str, start: int, together: int
) -> None:
    start = min(start, examples)
    order = Full(examples)
    shares_of_all = Shares(tuple(weights) * replicas)

    def epoch_of(share: Share) -> list[list[list[tuple[int, float]]]]:
        """For each step, for each part, the examples with their weights."""
        chunks = BatchChunks(order, 3, lambda start: Batches(examples, size, tail, start), share, examples=together)
        found = []
        for number in range(chunks.count(start)):
            some = chunks(epoch=2, start=start, number=number)
            for batch in range(len(some.steps)):
                assert some.steps[batch] == len(found)
                begin, end = Batches(examples, size, tail, start).bounds(len(found))
                assert some.rows[batch] == end - begin
                assert some.slices[batch, :, 2].max() == some.ids.shape[1], "nothing is read that no part takes"
                rows = list(zip(some.ids[batch].tolist(), some.weights[batch].tolist(), strict=True))
                found.append([rows[first : first + count] for count, first, _ in some.slices[batch].tolist()])
        return found

    whole = [pieces[0] for pieces in epoch_of(WHOLE)]
    shares = [epoch_of(Share(0, replicas, shares_of_all).of_process(worker)) for worker in range(len(weights))]
    assert {len(share) for share in shares} == {len(whole)}, "equal steps"
    for step, batch in enumerate(whole):
        assert [row for share in shares for piece in share[step] for row in piece] == batch
    real = [example for batch in whole for example, weight in batch if weight]
    positions = range(start, start + (examples - start) // size * size if tail == "drop" else examples)
    assert real == order.ids(seed=3, epoch=2, positions=np.array(positions, np.int64)).tolist()
