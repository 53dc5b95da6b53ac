"""Native collectives between the replicas of one process: which are taken, and what becomes of a step that fails."""

import functools
import os
from collections.abc import Iterator

import numpy as np
import pytest

from tests.integration import case_pools
from tests.integration.case_pools import DEADLINE_SECONDS, start
from tests.integration.forks import Forks
from tfdist.native import build_target, library
from tfdist.testing.pool import WorkerPool

call = functools.partial(case_pools.call_one, of="native_replica_cases")
pytestmark = pytest.mark.timeout(3 * DEADLINE_SECONDS)


@pytest.fixture(scope="module")
def pool(forking: Forks) -> Iterator[WorkerPool]:
    """One process with two replicas, which TensorFlow gives one thread for all that they run side by side."""
    library.build(library.COLLECTIVES, build_target.observe(), os.environ)
    with start(forking, "mirrored", replicas=2, TF_NUM_INTEROP_THREADS="1") as workers:
        yield workers


@pytest.fixture(scope="module")
def processes(forking: Forks) -> Iterator[WorkerPool]:
    """Two processes of two replicas each."""
    library.build(library.COLLECTIVES, build_target.observe(), os.environ)
    with start(forking, "multi-worker", 2, replicas=2, TFDIST_COLLECTIVES="native") as workers:
        yield workers


def test_a_gradient_goes_straight_to_the_native_collective(pool: WorkerPool) -> None:
    entered = call(pool, "files", of="gradient_walk", collectives="native")
    assert "collectives/backends/native_collective.py" in entered
    assert "gradients/reduction/replica_sums.py" not in entered, "TensorFlow's reductions are not asked"
    assert len(entered) <= 12, entered


def test_a_replica_that_fails_ends_the_step_and_the_next_is_as_if_nothing_had_been(pool: WorkerPool) -> None:
    fails = [False, True, False, True, True, False]
    found = call(pool, "outcomes_of_steps", fails=fails)
    assert found == ["this replica fails" if bad else "[48.0]" for bad in fails]


def test_a_model_trains_on_behind_a_fit_in_which_a_replica_failed(pool: WorkerPool) -> None:
    native, tensorflow = call(pool, "fits_around_a_failure")
    np.testing.assert_allclose(native, tensorflow, rtol=1e-5)


def test_who_gives_up_says_why(pool: WorkerPool) -> None:
    assert "on purpose" in call(pool, "waits_end", reason="on purpose")


def test_replicas_of_two_processes(processes: WorkerPool) -> None:
    for reply in processes.call("native_replica_cases:wrong_of_two_levels", {}, timeout_seconds=DEADLINE_SECONDS):
        assert (reply.status, reply.value) == ("returned", []), f"{reply.message}\n{reply.detail}"


@pytest.mark.parametrize(
    ("collectives", "variable", "taken"),
    [
        (None, None, "TensorFlowCollective"),
        (None, "native", "NativeCollective"),
        ("auto", None, "NativeCollective"),
        ("tensorflow", "native", "TensorFlowCollective"),
        ("gloo", None, "collectives is 'gloo'"),
        (None, "horovod", "TensorFlowCollective"),
        (None, "gloo", "TFDIST_COLLECTIVES is 'gloo'"),
    ],
)
def test_which_collectives_are_taken(
    pool: WorkerPool, collectives: str | None, variable: str | None, taken: str
) -> None:
    assert call(pool, "chosen", collectives=collectives, variable=variable).startswith(taken)
