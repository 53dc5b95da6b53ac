"""The measured link between members whose sums take more and less time in turn, on a clock of the test's."""

from typing import Any

import pytest
import tensorflow as tf

from tfdist.collectives import link_measuring
from tfdist.planner.planner_link import Link

pytestmark = pytest.mark.quick


class PlayedCollective:
    """Two members on a link. One begins later than the other: it waits less for every other sum, and then more."""

    size, rank = 2, 0

    def __init__(self, link: Link, late_seconds: float) -> None:
        self.sends_directly = link.is_direct
        self._link = link
        self._late = late_seconds
        self.now = 0.0

    def all_reduce(self, tensors: list[tf.Tensor], *, key: str, op: str = "sum") -> list[tf.Tensor]:
        if op == "sum":
            self.now += self._link.all_reduce_seconds(4 * int(tf.size(tensors[0])), 2) + self._late
            self._late = -self._late
        return tensors

    def broadcast(self, tensor: tf.Tensor, *, key: str) -> tf.Tensor:
        return tensor


@pytest.mark.parametrize("is_direct", [False, True])
@pytest.mark.parametrize("late_seconds", [0.0, 0.009])
def test_members_that_begin_apart_measure_their_link(
    late_seconds: float, is_direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(latency_seconds=0.005, bytes_per_second=1e8, is_direct=is_direct)
    played: Any = PlayedCollective(link, late_seconds)
    monkeypatch.setattr("tfdist.collectives.link_measuring.time.perf_counter", lambda: played.now)
    found = link_measuring.measured_link(played, 1 << 20, seconds=1.0)
    assert found.latency_seconds == pytest.approx(link.latency_seconds, rel=1e-3)
    assert found.bytes_per_second == pytest.approx(link.bytes_per_second, rel=1e-3)
    assert found.is_direct == is_direct
