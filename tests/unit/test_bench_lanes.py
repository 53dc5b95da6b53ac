"""The processes that are held while a lane has its turn."""

import contextlib
from collections.abc import Iterator

import pytest

from tfdist.bench.workers import lanes


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


def test_horovods_processes_are_held_while_others_run_and_never_in_their_own_turn() -> None:
    tensorflow, multi, horovod, ring = everybody = [
        Recorded(name, workers=2) for name in ("tensorflow", "multi-worker", "horovod", "ring")
    ]
    for lane, held in (
        (tensorflow, [False, False, True, True]),
        (multi, [False, False, True, True]),
        (horovod, [False, False, False, True]),
        (ring, [False, False, True, False]),
    ):
        with lanes.turn(lane, everybody) as running:
            assert running is lane
            assert [each.holds for each in everybody] == held


def test_a_failure_in_a_turn_lets_the_others_go() -> None:
    tensorflow, ring = Recorded("tensorflow", workers=2), Recorded("ring", workers=2)
    with pytest.raises(KeyError), lanes.turn(tensorflow, [tensorflow, ring]):
        raise KeyError
    assert not ring.holds
