"""Gradient compression beside Horovod and beside none: bytes, the time of a step, and the error of a gradient."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.bench.codecs import arms
from tfdist.bench.codecs.choice import AUTO, HOROVOD, NONE, NOOP, parsed
from tfdist.bench.workers.interface import Sent
from tfdist.bench.workers.links import Link
from tfdist.errors import ConfigError
from tfdist.measurement import machine
from tfdist.measurement.ratio import Quartiles, quartiles, ratio
from tfdist.validation import integer

__all__ = ["Report", "Row", "Setup", "run"]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What is measured.

    Attributes:
        codecs: names with options, see `choice.parsed`.
        model: a name from `tfdist.bench.workers.models.MODELS`.
        workers: number of processes, at least 2.
        global_batch_size: examples per step over all workers; a multiple of their number.
        warm_up_steps: of each arm before the first measurement.
        steps: steps per measurement.
        rounds: measurements of each arm.
        link: what connects the workers; None: they share this host.
        modules: that register codecs of the user's.
    """

    codecs: Sequence[str]
    model: str
    workers: int
    global_batch_size: int
    warm_up_steps: int
    steps: int
    rounds: int
    link: Link | None = None
    modules: Sequence[str] = ()

    def __post_init__(self) -> None:
        integer("workers", self.workers, minimum=2)
        for name in ("global_batch_size", "warm_up_steps", "steps", "rounds"):
            integer(name, getattr(self, name), minimum=1)
        arms.require_equal_parts(self.global_batch_size, self.workers)
        if not self.codecs:
            raise ConfigError("codecs is empty; name some, such as powersgd.")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One way to reduce gradients.

    Attributes:
        name: of a codec with its options, or `HOROVOD`, or `NOOP`.
        seconds: per step, one per round; the slowest worker's.
        sent_bytes: per step and worker, one per round, by the counter of the worker's interface, the mean over workers;
            empty without a link.
        payload_bytes: those without the headers of packets.
        wire_bytes: that a worker sends for the gradients of a step, by the formulas; None where nothing is said.
        computing: seconds until the first messages leave, and from then on, one pair per round; the slowest worker's.
        error: |total - exact| / |exact| of the gradients of one batch; None of what is no codec.
    """

    name: str
    seconds: Sequence[float]
    sent_bytes: Sequence[float] = ()
    payload_bytes: Sequence[float] = ()
    wire_bytes: float | None = None
    computing: Sequence[tuple[float, float]] = ()
    error: float | None = None

    @property
    def sent(self) -> float | None:
        """The median of the bytes that a worker has sent in a step."""
        return quartiles(self.sent_bytes).median if self.sent_bytes else None

    @property
    def payload(self) -> float | None:
        """The median of the bytes that a worker has sent in a step, without the headers of packets."""
        return quartiles(self.payload_bytes).median if self.payload_bytes else None

    @property
    def payload_over_formula(self) -> float | None:
        """How many times the bytes of the formula have left."""
        return self.payload / self.wire_bytes if self.payload is not None and self.wire_bytes else None

    @property
    def encode(self) -> float | None:
        """The median seconds of computing until the first messages leave."""
        return quartiles([first for first, _ in self.computing]).median if self.computing else None

    @property
    def decode(self) -> float | None:
        """The median seconds of computing from then on."""
        return quartiles([rest for _, rest in self.computing]).median if self.computing else None


@dataclass(frozen=True, kw_only=True)
class Report:
    """All rows, and the machine.

    Attributes:
        setup: what was measured.
        rows: one for each way.
        left_out: name -> why it could not run.
        machine: processor, cores, versions, time and load at the start, and the load at the end.
    """

    setup: Setup
    rows: Sequence[Row]
    left_out: Mapping[str, str]
    machine: Mapping[str, str]

    def speed(self, row: Row, peer: str) -> Quartiles | None:
        """Return the time of the peer's step over that of a row's in the same round; None without the peer."""
        found = [one for one in self.rows if one.name == peer]
        return ratio(found[0].seconds, row.seconds) if found and row.name != peer else None

    def regrets(self) -> dict[str, tuple[str, Quartiles]]:
        """Return for each "auto" the fixed codec whose step was shortest, and how many times that its own step took."""
        own = [row for row in self.rows if parsed(row.name)[0] == AUTO]
        fixed = [row for row in self.rows if row not in own and row.name not in (NOOP, HOROVOD)]
        best = min(fixed, key=lambda row: quartiles(row.seconds).median)
        return {row.name: (best.name, ratio(row.seconds, best.seconds)) for row in own}

    def to_json(self) -> str:
        """Return the report as JSON, medians and ratios included."""
        regrets = {name: {"best": best, **asdict(times)} for name, (best, times) in self.regrets().items()}
        derived = [
            {
                "name": row.name,
                "seconds": asdict(quartiles(row.seconds)),
                "sent_bytes": row.sent,
                "payload_bytes": row.payload,
                "payload_over_formula": row.payload_over_formula,
                "encode": row.encode,
                "decode": row.decode,
                "speed": {peer: asdict(q) for peer in (NONE, HOROVOD) if (q := self.speed(row, peer)) is not None},
            }
            for row in self.rows
        ]
        return json.dumps({**asdict(self), "results": derived, "regrets": regrets}, indent=2)


def run(setup: Setup, *, on_turn: Callable[[str, int], None] = lambda name, number: None) -> Report:
    """Measure all ways in turns, each round in another order, and return the report.

    Args:
        setup: what to measure.
        on_turn: told of each way and round (0: warming up) before it is measured.
    Raises:
        TfdistError: a worker failed; the message has its traceback.

    Example:
        >>> run(Setup(codecs=["powersgd"], model="small", workers=2, global_batch_size=32, warm_up_steps=2,
        ...           steps=5, rounds=3)).rows                                                      # doctest: +SKIP
    """
    about = machine.describe()
    found = arms.compared(setup.codecs, bound=True)
    measured: dict[str, list[list[Any]]] = {name: [] for name in found.lanes}
    with arms.running(found, setup.workers, setup.link) as call:
        what = {"model": setup.model, "global_batch_size": setup.global_batch_size, "modules": list(setup.modules)}
        studies = {}
        for name in found.lanes:  # the first call makes the strategy, before which TensorFlow may do nothing
            on_turn(name, 0)
            call(name, "steps:prepare", arm=name, steps=setup.warm_up_steps, **what)
            if name not in (NOOP, HOROVOD):
                studies[name] = call(name, "gradients:study", codec=name, times=setup.rounds, **what)
        for number, order in enumerate(found.orders(setup.rounds), start=1):
            for name in order:
                on_turn(name, number)
                measured[name].append(call(name, "steps:measure", arm=name, steps=setup.steps))
    about["load average at the end"] = machine.describe()["load average"]
    rows = [_row(name, setup, measured[name], studies.get(name), studies[NONE]) for name in found.lanes]
    return Report(setup=setup, rows=rows, left_out=found.left_out, machine=about)


def _row(name: str, setup: Setup, rounds: list[list[Any]], study: list[Any] | None, whole: list[Any]) -> Row:
    """Return a row of what all workers have measured in each round, and what each has found of the codec."""
    seconds = [max(seconds for seconds, _ in workers) / setup.steps for workers in rounds]
    sent = [[Sent(*sent) for _, sent in workers] for workers in rounds] if setup.link else []
    sent_bytes = [sum(one.bytes for one in workers) / setup.workers / setup.steps for workers in sent]
    payload_bytes = [sum(one.payload for one in workers) / setup.workers / setup.steps for workers in sent]
    if study is None:
        return Row(
            name=name,
            seconds=seconds,
            sent_bytes=sent_bytes,
            payload_bytes=payload_bytes,
            wire_bytes=None if name == NOOP else whole[0]["wire_bytes"],
        )
    slowest = [max(turn, key=sum) for turn in zip(*(worker["seconds"] for worker in study), strict=True)]
    return Row(
        name=name,
        seconds=seconds,
        sent_bytes=sent_bytes,
        payload_bytes=payload_bytes,
        wire_bytes=study[0]["wire_bytes"],
        computing=[tuple(turn) for turn in slowest],
        error=study[0]["error"],
    )
