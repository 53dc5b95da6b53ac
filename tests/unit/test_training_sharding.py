"""The part of each variable that a worker updates, and the conditions of sharding: pure functions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.checkpoint.state_resizing import resharded
from tfdist.errors import ConfigError, UnsupportedError
from tfdist.gradients.sharding import shard_layout


@given(count=st.integers(0, 200), size=st.integers(1, 9))
def test_stretches_are_those_that_backups_are_divided_by(count: int, size: int) -> None:
    parts = [part.tolist() for part in np.array_split(np.arange(count), size)]
    bounds = [shard_layout.stretch(count, index, size) for index in range(size)]
    assert [list(range(begin, end)) for begin, end in bounds] == parts
    assert max(end - begin for begin, end in bounds) == math.ceil(count / size)


@given(counts=st.lists(st.integers(0, 1000), max_size=40), size=st.integers(1, 9))
def test_owners_are_balanced(counts: list[int], size: int) -> None:
    chosen = shard_layout.owners(counts, size)
    loads = [sum(count for count, owner in zip(counts, chosen, strict=True) if owner == index) for index in range(size)]
    assert sum(loads) == sum(counts)
    assert max(loads) <= sum(counts) / size + max(counts, default=0)
    assert chosen == shard_layout.owners(counts, size), "the same on every worker"


def test_equal_variables_are_dealt_out_evenly() -> None:
    assert sorted(shard_layout.owners([0] * 9, 3)) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert sorted(shard_layout.owners([5, 5, 5, 5], 2)) == [0, 0, 1, 1]


def test_what_one_worker_has_is_handed_to_whoever_has_it_now() -> None:
    whole, nothing = np.ones((2, 3)), np.zeros((0, 0))
    for index in range(3):
        assert resharded("owned", [nothing, whole], index=index, count=3) is whole
    assert resharded("owned", [nothing, whole], index=0, count=2) is nothing
    assert resharded("owned", [nothing, nothing], index=1, count=3) is nothing


@pytest.mark.parametrize("stage", [0, 4, -1])
def test_a_stage_that_is_none_is_named(stage: int) -> None:
    with refused(ConfigError, name="stage", received=stage):
        shard_layout.require_stage("stage", stage)


def test_what_cannot_be_sharded_is_refused_with_what_can() -> None:
    for stage in (None, 1, 2, 3):
        shard_layout.require_stage("stage", stage)
        shard_layout.require_one_cpu(stage, ["/device:CPU:0"])
    shard_layout.require_one_cpu(None, ["/device:GPU:0", "/device:GPU:1"])
    for devices in (["/device:CPU:0", "/device:CPU:1"], ["/device:GPU:0"]):
        with refused(UnsupportedError, name="shard_optimizer", received=1, mentions=devices):
            shard_layout.require_one_cpu(1, devices)
