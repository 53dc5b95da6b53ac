"""Counts of the parts that backup workers drop, by worker and by step."""

from tfdist.training.parameter_servers.dropped_parts import Dropped, DroppedPart


def test_drops_are_told_by_worker_step_and_place() -> None:
    dropped = Dropped()
    dropped.step([5, 4, 4], [1], [2])
    dropped.step([5, 4, 4], [0, 2], [2])  # of the second late part no worker is known
    assert list(dropped.parts) == [DroppedPart(1, 2, 5, 4), DroppedPart(2, 2, 0, 5), DroppedPart(2, None, 9, 4)]
    assert (dropped.examples, dropped.seen, dropped.steps) == (13, 26, 2)
    assert dropped.by_worker == {2: 9, None: 4}
    text = str(dropped)
    assert all(one in text for one in ("13 of 26", "2 steps", "worker 2", "no worker"))


def test_what_came_since_is_told_apart() -> None:
    dropped = Dropped()
    dropped.step([3, 3], [0], [1])
    before = dropped.copy()
    assert dropped.since(before).examples == 0
    dropped.step([3, 3], [1], [0])
    since = dropped.since(before)
    assert (since.examples, since.seen, since.steps, since.by_worker) == (3, 6, 1, {0: 3})
    assert [part.step for part in since.parts] == [2]
    assert before.examples == 3


def test_sums_have_what_the_list_has_forgotten() -> None:
    dropped = Dropped()
    for _ in range(1500):
        dropped.step([2, 2], [1], [0])
    assert (dropped.examples, len(dropped.parts), dropped.parts[0].step) == (3000, 1000, 501)
