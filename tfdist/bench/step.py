"""Steps per second: tfdist with `fit` beside TensorFlow's strategy in a hand-written loop, in turns."""

import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from tfdist.bench.ratio import Ratio, ratio
from tfdist.cluster import ports
from tfdist.errors import TfdistError
from tfdist.testing.environment import worker_environments
from tfdist.testing.pool import WorkerPool

__all__ = ["ARMS", "Setup", "StepReport", "run"]

# arm -> which processes it shares: TensorFlow's strategy and tfdist's cannot both be the multi-worker one of a process
ARMS: Mapping[str, str] = {"tensorflow loop": "tensorflow", "tfdist loop": "tfdist", "tfdist fit": "tfdist"}
_CALL_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        strategy: registered name.
        workers: number of processes.
        replicas_per_worker: replicas in each.
        model: a name from `tfdist.bench.models.MODELS`.
        global_batch_size: examples per step over all replicas.
        steps: steps per measurement.
        rounds: measurements of each arm.
    """

    strategy: str
    workers: int
    replicas_per_worker: int
    model: str
    global_batch_size: int
    steps: int
    rounds: int


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """Seconds of each arm in each round, and the machine.

    Attributes:
        setup: what was measured.
        seconds: arm -> seconds per step, one per round.
        machine: processor, cores and Python.
    """

    setup: Setup
    seconds: Mapping[str, Sequence[float]]
    machine: str

    @property
    def speed(self) -> Ratio:
        """Steps per second of tfdist's `fit` over those of TensorFlow's loop."""
        return ratio(self.seconds["tensorflow loop"], self.seconds["tfdist fit"])

    @property
    def correctness_cost(self) -> Ratio:
        """Time of a step of tfdist's `fit` over that of a bare loop under the same strategy."""
        return ratio(self.seconds["tfdist fit"], self.seconds["tfdist loop"])

    def to_json(self) -> str:
        """Return the report as JSON, ratios included."""
        derived = {"speed": asdict(self.speed), "correctness_cost": asdict(self.correctness_cost)}
        return json.dumps({**asdict(self), **derived}, indent=2)


def run(setup: Setup, *, on_round: Callable[[str, int], None] = lambda arm, number: None) -> StepReport:
    """Measure all arms in turns, each round in another order, and return the report.

    Args:
        setup: what to measure.
        on_round: told of each arm and round before it is measured.
    Raises:
        TfdistError: a worker failed; the message has its traceback.

    Example:
        >>> run(Setup(strategy="mirrored", workers=1, replicas_per_worker=2, model="convolutional",
        ...           global_batch_size=64, steps=20, rounds=5)).speed         # doctest: +SKIP
    """
    arms = list(ARMS)
    seconds: dict[str, list[float]] = {arm: [] for arm in arms}
    with WorkerPool(lambda: _environments(setup)) as tensorflow, WorkerPool(lambda: _environments(setup)) as tfdist:
        pools = {"tensorflow": tensorflow, "tfdist": tfdist}
        common = {"strategy": setup.strategy, "model": setup.model, "global_batch_size": setup.global_batch_size}
        for arm in arms:
            on_round(arm, 0)
            _call(pools[ARMS[arm]], "prepare", {"arm": arm, **common})
        for number in range(setup.rounds):
            for arm in arms[number % len(arms) :] + arms[: number % len(arms)]:
                on_round(arm, number + 1)
                took = _call(pools[ARMS[arm]], "measure", {"arm": arm, "steps": setup.steps})
                seconds[arm].append(max(took) / setup.steps)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return StepReport(setup=setup, seconds=seconds, machine=machine)


def _environments(setup: Setup) -> list[dict[str, str]]:
    return worker_environments(
        os.environ,
        strategy=setup.strategy,
        ports=ports.free_ports(setup.workers),
        replicas_per_worker=setup.replicas_per_worker,
    )


def _call(pool: WorkerPool, function: str, arguments: Mapping[str, object]) -> list[float]:
    replies = pool.call(f"tfdist.bench.arms:{function}", arguments, timeout_seconds=_CALL_SECONDS)
    for reply in sorted(replies, key=lambda reply: reply.seconds):
        if reply.status != "returned":
            raise TfdistError(f"worker {reply.worker} {reply.status}: {reply.message}\n{reply.detail}")
    return [reply.value for reply in replies]
