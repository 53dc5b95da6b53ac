"""Whose processes are held while a lane has its turn."""

import contextlib
from collections.abc import Iterator

import pytest

from tfdist.bench import lanes


class Recorded(lanes.Lane):
    """A lane that notes whether it is held."""

    holds = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        self.holds = True
        try:
            yield
        finally:
            self.holds = False


def test_the_ring_is_held_while_others_run_and_never_in_its_own_turn() -> None:
    plain, multi, ring = (Recorded(strategy, workers=2) for strategy in (None, "multi-worker", "ring"))
    everybody = [plain, multi, ring]
    with lanes.turn(plain, everybody) as lane:
        assert lane is plain
        assert [each.holds for each in everybody] == [False, False, True]
    with lanes.turn(ring, everybody):
        assert [each.holds for each in everybody] == [False, False, False]


def test_a_failure_in_a_turn_lets_the_others_go() -> None:
    plain, ring = Recorded(None, workers=2), Recorded("ring", workers=2)
    with pytest.raises(KeyError), lanes.turn(plain, [plain, ring]):
        raise KeyError
    assert not ring.holds
