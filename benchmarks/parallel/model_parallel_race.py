"""A transformer over two processes of one host, compared with one process and with DTensor, in turns.

Each process has one processor. So the efficiency is the time of one process over twice that of two; the sums between
the two processes bound it. DTensor has no Keras layers, so it runs the blocks without attention, and is compared with
the same under model parallelism.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, option, quartiles, ratio, rounds, turn, untold
from tfdist.bench.workers import lanes
from tfdist.cli.bench.suite_command import suite_command
from tfdist.errors import ConfigError
from tfdist.planner import machine
from tfdist.variables import MESH

__all__ = ["ARMS", "SHAPE", "ModelParallelBench", "ModelParallelReport", "TransformerSuite", "command", "limit", "sums"]

#: the settings of the transformer and its batch for the worker processes
SHAPE = ("blocks", "width", "heads", "length", "words", "batch_size")
_WORKERS = 2
_MESH = f"batch=1,model={_WORKERS}"
#: arm -> network, lane and number of processes
ARMS: Mapping[str, tuple[str, str, int]] = {
    "one process": ("transformer", "tensorflow", 1),
    "two processes": ("transformer", "model-parallel", _WORKERS),
    "one process, no attention": ("perceptron", "tensorflow", 1),
    "two processes, no attention": ("perceptron", "model-parallel", _WORKERS),
    "DTensor, no attention": ("dtensor", "tensorflow", _WORKERS),
}


@dataclass(frozen=True, kw_only=True)
class TransformerSuite(Suite):
    """A transformer that several benchmarks train."""

    blocks: int = option(8, "Of the transformer.")
    width: int = option(256, "Of an activation.")
    heads: int = option(4, "Of an attention.")
    length: int = option(64, "Places of a text.")
    words: int = option(64, "That there are.")
    batch_size: int = option(16, "Texts of a step.")
    steps: int = option(3, "Steps per measurement.")
    rounds: int = option(5, "Measurements each.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads:
            raise ConfigError(f"width is {self.width} for {self.heads} heads. Choose a multiple of the heads.")

    def shape(self) -> dict[str, int]:
        """Return the settings of the network, for the worker processes."""
        return {name: getattr(self, name) for name in SHAPE}


@dataclass(frozen=True, kw_only=True)
class ModelParallelBench(TransformerSuite):
    """Train a transformer with its weights in parts over two processes, compared with one process.

    Each process has one processor. The efficiency is the time of one process over twice that of two. Its limit is the
    efficiency if only the sums of activations cost time, at the speed of two processes in the same round. DTensor has
    no Keras layers, so it trains the blocks without attention, and is compared with the same network under
    model-parallel. A speed over DTensor above 1 means that tfdist is faster.
    """

    words: int = option(1024, "That there are.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("heads", "width", "words"):
            if getattr(self, name) % _WORKERS:
                raise ConfigError(f"{name} is {getattr(self, name)}; two processes share them. Choose an even number.")

    @property
    def numbers(self) -> int:
        """Numbers of an activation between two layers."""
        return self.batch_size * self.length * self.width

    def run(self, told: Told = untold) -> "ModelParallelReport":
        seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
        of_sums: list[float] = []
        with machine.observed() as about, lanes.running({arm: _lane(arm) for arm in ARMS}) as call:

            def slowest(arm: str, function: str, **arguments: Any) -> float:
                found = call(arm, f"benchmarks.parallel.model_parallel_training:{function}", **arguments)
                return max(filter(None, found), default=0)

            for arm, (network, lane, _) in ARMS.items():
                told(f"{arm}, {turn(0, self.rounds)}")
                mesh = _MESH if lane == "model-parallel" else None
                slowest(arm, "prepare", network=network, mesh=mesh, steps=2, **self.shape())
            slowest("two processes", "sum_seconds", count=self.numbers, times=1)
            for number, order in rounds(list(ARMS), self.rounds):
                for arm in order:
                    told(f"{arm}, {turn(number, self.rounds)}")
                    seconds[arm].append(slowest(arm, "measure", steps=self.steps) / self.steps)
                of_sums.append(slowest("two processes", "sum_seconds", count=self.numbers, times=2))
        return ModelParallelReport(setup=self, seconds=seconds, sum_seconds=of_sums, machine=about)


@dataclass(frozen=True, kw_only=True)
class ModelParallelReport(Report):
    """The seconds per step of each arm, and of the sum of an activation."""

    setup: ModelParallelBench
    seconds: Mapping[str, Sequence[float]]  # arm -> seconds per step, one per round; the slowest process's
    sum_seconds: Sequence[float]  # of the sum of an activation over two processes, one per round

    def efficiency(self, kind: str = "") -> Quartiles:
        """Return the time of one process over twice that of two; ``kind`` is ", no attention" or nothing."""
        one, two = self.seconds[f"one process{kind}"], self.seconds[f"two processes{kind}"]
        return ratio(one, [_WORKERS * each for each in two])

    def limit(self, kind: str = "") -> Quartiles:
        """Return the efficiency if a step took only half of the computing and the sums."""
        count = sums(self.setup.blocks, attention=not kind)
        pairs = zip(self.seconds[f"one process{kind}"], self.sum_seconds, strict=True)
        return quartiles([limit(seconds, count * one) for seconds, one in pairs])

    @property
    def over_dtensor(self) -> Quartiles:
        """The speed compared with DTensor: its time over that of model parallelism."""
        return ratio(self.seconds["DTensor, no attention"], self.seconds["two processes, no attention"])

    def derived(self) -> dict[str, Any]:
        kinds = ("", ", no attention")
        return {
            "efficiency": {kind or "transformer": self.efficiency(kind) for kind in kinds},
            "limit": {kind or "transformer": self.limit(kind) for kind in kinds},
            "median_ms": {arm: 1000 * median(self.seconds[arm]) for arm in self.seconds},
            "speed_over_dtensor": self.over_dtensor,
        }

    def shown(self) -> Iterator[Table | str]:
        setup, kinds = self.setup, ("", ", no attention")

        def milliseconds(arm: str) -> str:
            return f"{1000 * median(self.seconds[arm]):.1f}"

        yield Table(
            ("", "transformer", "without attention"),
            [
                *(
                    [f"{name}, ms per step", *(milliseconds(f"{name}{kind}") for kind in kinds)]
                    for name in ("one process", "two processes")
                ),
                ["DTensor, two processes, ms per step", "-", milliseconds("DTensor, no attention")],
                ["parallel efficiency", *(str(self.efficiency(kind)) for kind in kinds)],
                ["  its limit by the sums", *(str(self.limit(kind)) for kind in kinds)],
                ["speed over DTensor", "-", str(self.over_dtensor)],
            ],
        )
        counts = [sums(setup.blocks, attention=attention) for attention in (True, False)]
        yield (
            f"{setup.blocks} blocks of width {setup.width}, {setup.batch_size} texts of {setup.length} words; "
            f"{counts[0]} and {counts[1]} sums of {4 * setup.numbers / 1e6:.2f} MB in a step, "
            f"{1000 * median(self.sum_seconds):.2f} ms each; {setup.rounds} rounds of {setup.steps} steps; median "
            f"[lower-upper quartile]; {self.ran_on()}"
        )


def sums(blocks: int, *, attention: bool) -> int:
    """Return the number of activations that two processes add up in a step.

    These are the outputs of layers by rows in the forward pass, and in the backward pass the gradients of inputs of
    layers by columns. An attention has two such inputs, query and value. Words and logits have one each.

    Example:
        >>> sums(8, attention=True), sums(8, attention=False)
        (42, 16)
    """
    return 5 * blocks + 2 if attention else 2 * blocks


def limit(seconds: float, sums_seconds: float) -> float:
    """Return the parallel efficiency of two processes that share all computing and wait for their sums.

    Example:
        >>> limit(1.0, 0.0), limit(1.0, 0.5)
        (1.0, 0.5)
    """
    return seconds / (_WORKERS * (seconds / _WORKERS + sums_seconds))


def _lane(arm: str) -> lanes.Lane:
    _, name, workers = ARMS[arm]
    environment = {MESH.name: _MESH} if name == "model-parallel" else {}
    return lanes.Lane(name, workers=workers, environment=environment)


command = suite_command(
    "model-parallel",
    ModelParallelBench,
    examples={
        "python -m benchmarks model-parallel": "8 blocks: minutes",
        "python -m benchmarks model-parallel --width 512 --batch-size 8": "wider",
        "python -m benchmarks model-parallel --blocks 2 --rounds 3": "a glance",
    },
    page="model-parallel",
)
