"""Requests in graphs to TensorFlow's collectives between GPUs: NCCL, in one order. To read a graph needs no GPU."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.distribute import cross_device_utils
from tensorflow.python.distribute.collective_util import CommunicationImplementation, Options

from tfdist.collectives.backends.tensorflow_collective import of_replicas

GPUS = ["/device:GPU:0", "/device:GPU:1"]
ORDERED = ("CollectiveReduceV2", "CollectiveGatherV2")


def collectives(function: Callable[..., Any], *like: tf.Tensor) -> list[tf.Operation]:
    """The collective operations of a traced function, in traced order."""
    graph = tf.function(function, autograph=False).get_concrete_function(*like).graph
    return [one for one in graph.get_operations() if one.type.startswith("Collective")]


def hint(operation: tf.Operation) -> str:
    return operation.get_attr("communication_hint").decode()


def comes_after(later: tf.Operation, earlier: tf.Operation) -> bool:
    """Whether an operation waits for another, by data or control."""
    seen, left = set(), [later]
    while left:
        one = left.pop()
        if one is earlier:
            return True
        if one not in seen:
            seen.add(one)
            left += [*one.control_inputs, *(tensor.op for tensor in one.inputs)]
    return False


@pytest.mark.parametrize(("cards", "asked"), [(["", ""], "auto"), (["a", "b"], "nccl"), (["a", "a"], "ring")])
def test_each_kind_of_group_asks_for_what_it_can_have(cards: list[str], asked: str) -> None:
    devices = GPUS if any(cards) else ["/device:CPU:0", "/device:CPU:0"]
    member, _ = of_replicas(devices, cards=cards)

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        return [*member.all_reduce([x], key="sum"), member.all_gather(x, key="rows"), member.broadcast(x, key="first")]

    found = collectives(step, tf.ones([3]))
    assert {hint(one) for one in found if one.type in ORDERED} == {asked}
    assert {hint(one) for one in found if one.type not in ORDERED} == {"auto"}, "broadcasts have no order"
    assert {one.device.rpartition("/")[2] for one in found} == {devices[0].lstrip("/")}


def test_operations_of_all_groups_of_a_card_keep_one_order() -> None:
    """Two communicators that begin in unlike orders on two cards would wait for each other for ever."""
    first, _ = of_replicas(GPUS, cards=["a", "b"])
    second, _ = of_replicas(GPUS, cards=["a", "b"])
    third = first.among([0, 1])
    assert third is not None

    def step(x: tf.Tensor) -> list[tf.Tensor]:
        groups = (first, second, third, first)
        return [group.all_reduce([x], key=f"sum {number}")[0] for number, group in enumerate(groups)]

    found = collectives(step, tf.ones([3]))
    assert [one.type for one in found] == ["CollectiveReduceV2"] * 4
    for earlier, later in itertools.pairwise(found):
        assert comes_after(later, earlier)


def test_a_sum_asks_for_what_that_of_tensorflow_asks() -> None:
    member, _ = of_replicas(GPUS, cards=["a", "b"])
    keys = cross_device_utils.CollectiveKeys(group_key_start=900)
    options = Options(implementation=CommunicationImplementation.NCCL)
    theirs = cross_device_utils.CollectiveReplicaLauncher(keys.get_group_key(GPUS), 2, keys, GPUS[0], options)
    (ours,) = collectives(lambda x: member.all_reduce([x], key="sum"), tf.ones([3]))
    (other,) = collectives(lambda x: theirs.all_reduce(x, options=options), tf.ones([3]))
    for name in ("T", "communication_hint", "merge_op", "final_op", "Nordering_token", "is_stateless"):
        assert ours.get_attr(name) == other.get_attr(name), name
    assert ours.inputs[0].shape == other.inputs[0].shape
