"""The worker processes of this benchmark: a model under a plan, its profile, and the line between processes.

Each process computes on one processor, which is the device of the profile.
"""

import contextlib
from collections.abc import Sequence
from typing import Any

import keras

import tfdist.strategies
from benchmarks.parallel.parallel_networks import planned
from tfdist import cluster as clusters
from tfdist.parallel.partition.profile_model import profile, step_seconds

_trained: dict[tuple[str, str], Any] = {}


def measured_profile(name: str, divisors: Sequence[int], in_scope: bool, seconds: float) -> str:
    """Return the profile of a model, as JSON.

    ``divisors`` are the numbers of parts into which plans cut a batch. With ``in_scope``, steps are tfdist's, in a job
    of one worker, as in plans of several processes; otherwise Keras' own.
    """
    keras.utils.clear_session()  # layers have the names of those in the plans
    scope: Any = contextlib.nullcontext()
    if in_scope:
        scope = tfdist.strategies.MultiWorkerMirroredStrategy(clusters.Cluster()).scope()
    with scope:
        model, x, y = planned(name)

    def in_fit(batch: Any, steps: int) -> float:
        return step_seconds(model, batch, steps)

    sizes = [len(x) // one for one in divisors]
    return profile(model, (x, y), batch_sizes=sizes, in_fit=in_fit, seconds=seconds).to_json()


def prepare(name: str, plan: str, stages: Sequence[str] | None, microbatches: int) -> None:
    """Train a model for one step, by a plan; without stages, whole, by the strategy of this process if it has one."""
    keras.utils.clear_session()
    strategy: Any = contextlib.nullcontext()
    if stages is not None:
        strategy = tfdist.strategies.PipelineStrategy(stages=tuple(stages), microbatches=microbatches).scope()
    elif clusters.from_environment().num_workers > 1:
        strategy = tfdist.strategies.from_environment().scope()
    with strategy:
        model, x, y = planned(name)
    _trained[name, plan] = model, (x, y)
    step_seconds(model, (x, y), 1)


def measure(name: str, plan: str, warm_up: int, steps: int) -> float:
    """Return the seconds of a step, over the given number of steps after some that warm up.

    Other processes had the machine for a minute, so this process has no data in the caches. A virtual machine may also
    have been moved to other processors of its host.
    """
    model, batch = _trained[name, plan]
    step_seconds(model, batch, warm_up)
    return step_seconds(model, batch, steps)
