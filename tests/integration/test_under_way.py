"""A process's notes on its unfinished collectives, for backends that keep none: during a wait, and afterwards."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.integration.forks import Forks
from tests.integration.light import python_path
from tfdist.cluster import ports
from tfdist.native import stamp_ops
from tfdist.testing.pool import WorkerPool, worker_environments

tf = pytest.importorskip("tensorflow")

from tfdist.collectives import in_flight as module  # noqa: E402
from tfdist.collectives.in_flight import UnderWay, described  # noqa: E402
from tfdist.variables import STACKS_FILE  # noqa: E402

pytestmark = pytest.mark.quick

DEADLINE_SECONDS = 60
CASES = Path(__file__).parent / "cases"
CPU = "/device:CPU:0"


class Peer:
    """Lets a collective wait for it."""

    def __init__(self) -> None:
        self.asked, self.comes = threading.Event(), threading.Event()

    def collective(self, tensor: tf.Tensor) -> list[tf.Tensor]:
        def waits(values: np.ndarray) -> np.ndarray:
            self.asked.set()
            assert self.comes.wait(DEADLINE_SECONDS)
            return values

        return [tf.numpy_function(waits, [tensor], tensor.dtype, stateful=False)]


def wait_for(under_way: UnderWay, text: str) -> None:
    """Notes are written beside the collectives, at about the same time."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while under_way.text() != text:
        assert time.monotonic() < deadline, under_way.text()


@pytest.fixture
def under_way() -> UnderWay:
    library = stamp_ops.stamp_ops()
    assert library is not None
    return UnderWay(library)


def test_a_function_is_in_what_it_waits_for_and_in_nothing_before_and_after(under_way: UnderWay) -> None:
    peers = [Peer(), Peer()]

    @tf.function(autograph=False)
    def step(first: tf.Tensor) -> tf.Tensor:
        (second,) = under_way.noted("all_reduce 0", CPU, [first], lambda: peers[0].collective(first))
        return under_way.noted("all_reduce 1", CPU, [second], lambda: peers[1].collective(second))[0]

    with ThreadPoolExecutor(1) as threads:
        for _ in range(2):  # what is noted of a call says nothing of the next
            assert under_way.text() == ""
            result = threads.submit(lambda: step(tf.ones([2])).numpy())
            for number, peer in enumerate(peers):
                assert peer.asked.wait(DEADLINE_SECONDS)
                wait_for(under_way, f"all_reduce {number}")
                peer.comes.set()
            assert result.result(DEADLINE_SECONDS).tolist() == [1.0, 1.0]
            for peer in peers:
                peer.asked.clear()
                peer.comes.clear()
    assert under_way.text() == ""


def test_of_many_the_first_ones_are_named(under_way: UnderWay) -> None:
    peer = Peer()

    @tf.function(autograph=False)
    def step(tensor: tf.Tensor) -> list[tf.Tensor]:
        return [under_way.noted(name, CPU, [tensor], lambda: peer.collective(tensor))[0] for name in "abcd"]

    with ThreadPoolExecutor(1) as threads:
        result = threads.submit(lambda: [one.numpy() for one in step(tf.ones([]))])
        assert peer.asked.wait(DEADLINE_SECONDS)
        wait_for(under_way, "a and b and 2 more")
        peer.comes.set()
        result.result(DEADLINE_SECONDS)


def test_eagerly_it_is_noted_too_and_ends_with_an_error(under_way: UnderWay) -> None:
    def run() -> list[tf.Tensor]:
        assert under_way.text() == "broadcast"
        raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        under_way.noted("broadcast", CPU, [], run)
    assert under_way.text() == ""


def test_conditions_of_two_replicas_do_not_wait_for_each_other(forking: Forks) -> None:
    def environments() -> list[dict[str, str]]:  # with two threads of TensorFlow's, on one processor too
        made = worker_environments(forking.environment, strategy=None, ports=ports.free_ports(1), replicas_per_worker=1)
        return [one | {"PYTHONPATH": python_path(CASES)} for one in made]

    with WorkerPool(environments, start=forking.worker) as pool:
        arguments = {"timeout_seconds": DEADLINE_SECONDS}
        (reply,) = pool.call("under_way_cases:two_replicas", arguments, timeout_seconds=2 * DEADLINE_SECONDS)
    assert reply.status == "returned", reply.detail
    assert reply.value == [[[1.0, 1.0]] * 2, ""]


def test_what_is_too_much_to_note_runs_all_the_same(under_way: UnderWay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLOTS", 0)
    step = tf.function(lambda tensor: under_way.noted("x", CPU, [tensor], lambda: [tensor + 1])[0], autograph=False)
    assert step(tf.ones([])).numpy() == 2.0
    assert under_way.text() == ""


def test_a_slot_that_there_is_not_is_refused(under_way: UnderWay) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="no such slot"):
        under_way._library.ops.tfdist_note(slot=stamp_ops.SLOTS, value=1)


def test_nothing_is_noted_where_nobody_can_ask_or_no_ops_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(STACKS_FILE.name, raising=False)
    assert module.of_process.__wrapped__() is None
    monkeypatch.setenv(STACKS_FILE.name, "/nowhere")
    assert module.of_process.__wrapped__() is not None
    monkeypatch.setattr(module, "stamp_ops_if_kept", lambda: None)
    assert module.of_process.__wrapped__() is None


def test_it_is_named_as_the_native_engine_names_it() -> None:
    tensors = [tf.zeros([4, 2]), tf.zeros([], tf.int64)]
    assert described("all_reduce (sum, float32)", tensors) == "all_reduce (sum, float32) of 40 bytes"
    assert described("all_gather", [tf.TensorSpec([None, 2])]) == "all_gather"
