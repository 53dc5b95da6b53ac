"""The benchmark of codecs against Horovod and no compression: bytes, the time of a step, and gradients' errors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from tfdist.bench.codecs.codec_choice import (
    AUTO,
    HOROVOD,
    NONE,
    NOOP,
    compared,
    linked_lanes,
    parsed,
    require_equal_parts,
    where,
)
from tfdist.bench.suite import (
    MODELS,
    Quartiles,
    Report,
    Suite,
    Table,
    Told,
    in_turns,
    option,
    quartiles,
    ratio,
    turn,
    untold,
)
from tfdist.bench.workers.slow_network import EmulatedLink, Sent
from tfdist.errors import ConfigError
from tfdist.planner import machine

_PACKAGE = "tfdist.bench.codecs"


@dataclass(frozen=True, kw_only=True)
class CodecBench(Suite):
    codecs: Sequence[str]  # names with options, see `codec_choice.parsed`
    warm_up_steps: int = 2  # of each arm before the first measurement
    link: EmulatedLink | None = None  # what connects the workers; None: they share this host
    modules: Sequence[str] = ()  # that register codecs of the user's
    model: str = option("perceptron", "Model to train.", choices=MODELS)
    workers: int = option(2, "Worker processes.", minimum=2)
    global_batch_size: int = option(64, "Global batch size.", flags=["--batch-size"])
    steps: int = option(10, "Steps per measurement.")
    rounds: int = option(5, "Measurements of each.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_equal_parts(self.global_batch_size, self.workers)
        if not self.codecs:
            raise ConfigError("codecs is empty; name some, such as powersgd.")

    def run(self, told: Told = untold) -> "CodecReport":
        found = compared(self.codecs, bound=True)
        what = {"model": self.model, "global_batch_size": self.global_batch_size, "modules": list(self.modules)}
        with machine.observed() as about, linked_lanes(found, self.workers, self.link) as call:
            studies = {}
            for name in found.lanes:  # the first call makes the strategy, before which TensorFlow may do nothing
                told(f"{name}, {turn(0, self.rounds)}")
                call(name, f"{_PACKAGE}.codec_training:prepare", arm=name, steps=self.warm_up_steps, **what)
                if name not in (NOOP, HOROVOD):
                    studies[name] = call(name, f"{_PACKAGE}.codec_study:study", codec=name, times=self.rounds, **what)

            def measure(name: str, number: int) -> list[Any]:
                return call(name, f"{_PACKAGE}.codec_training:measure", arm=name, steps=self.steps)

            measured = in_turns(list(found.lanes), measure, count=self.rounds, told=told)
        rows = [_row(name, self, measured[name], studies.get(name), studies[NONE]) for name in found.lanes]
        return CodecReport(setup=self, rows=rows, left_out=found.left_out, machine=about)


@dataclass(frozen=True, kw_only=True)
class Row:
    name: str  # of a codec with its options, or `HOROVOD`, or `NOOP`
    seconds: Sequence[float]  # per step, one per round; the slowest worker's
    # per step and worker, one per round, by the counter of the worker's interface, the mean over workers; empty
    # without a link
    sent_bytes: Sequence[float] = ()
    payload_bytes: Sequence[float] = ()  # those without the headers of packets
    # bytes that a worker sends for the gradients of a step, by the formulas; None if no formula says so
    wire_bytes: float | None = None
    # seconds until the first messages leave, and from then on, one pair per round; the slowest worker's
    computing: Sequence[tuple[float, float]] = ()
    error: float | None = None  # |total - exact| / |exact| of the gradients of one batch; None of what is no codec

    @property
    def medians(self) -> dict[str, float | None]:
        """The bytes that a worker sends in a step, and the computing seconds before and after the first messages."""
        encode, decode = zip(*self.computing, strict=True) if self.computing else ((), ())
        of_rounds = {"sent_bytes": self.sent_bytes, "payload_bytes": self.payload_bytes}
        return {
            name: quartiles(rounds).median if rounds else None
            for name, rounds in {**of_rounds, "encode": encode, "decode": decode}.items()
        }

    @property
    def payload_over_formula(self) -> float | None:
        payload = self.medians["payload_bytes"]
        return payload / self.wire_bytes if payload is not None and self.wire_bytes else None


@dataclass(frozen=True, kw_only=True)
class CodecReport(Report):
    setup: CodecBench
    rows: Sequence[Row]
    left_out: Mapping[str, str]

    def speed(self, row: Row, peer: str) -> Quartiles | None:
        found = [one for one in self.rows if one.name == peer]
        return ratio(found[0].seconds, row.seconds) if found and row.name != peer else None

    def regrets(self) -> dict[str, tuple[str, Quartiles]]:
        """Return for each "auto" the fastest fixed codec, and the ratio of auto's step time to that codec's."""
        own = [row for row in self.rows if parsed(row.name)[0] == AUTO]
        fixed = [row for row in self.rows if row not in own and row.name not in (NOOP, HOROVOD)]
        best = min(fixed, key=lambda row: quartiles(row.seconds).median)
        return {row.name: (best.name, ratio(row.seconds, best.seconds)) for row in own}

    def derived(self) -> dict[str, Any]:
        results = [
            {
                "name": row.name,
                "seconds": quartiles(row.seconds),
                **row.medians,
                "payload_over_formula": row.payload_over_formula,
                "speed": {peer: q for peer in (NONE, HOROVOD) if (q := self.speed(row, peer)) is not None},
            }
            for row in self.rows
        ]
        regrets = {name: {"best": best, **asdict(times)} for name, (best, times) in self.regrets().items()}
        return {"results": results, "regrets": regrets}

    def shown(self) -> Iterator[Table | str]:
        setup = self.setup
        head = ("codec", "sent, bytes", "payload, bytes", "formula, bytes", "payl./form.", "encode, ms", "decode, ms")
        rows = [
            [
                row.name,
                *(_number(row.medians[name], ",.0f") for name in ("sent_bytes", "payload_bytes")),
                _number(row.wire_bytes, ",.0f"),
                _number(row.payload_over_formula, ".3f"),
                *(_number(row.medians[name], ".1f", 1e3) for name in ("encode", "decode")),
                "{:.1f} [{:.1f}-{:.1f}]".format(*astuple(quartiles([1e3 * seconds for seconds in row.seconds]))),
                *(str(self.speed(row, peer) or "-") for peer in (NONE, HOROVOD)),
                _number(row.error, ".3g"),
            ]
            for row in self.rows
        ]
        yield Table([*head, "step, ms", f"vs {NONE}", f"vs {HOROVOD}", "error"], rows)
        yield (
            f"{setup.model}, {setup.workers} workers {where(setup.link)}, global batch {setup.global_batch_size}; "
            f"{setup.rounds} rounds of {setup.steps} steps; median [lower-upper quartile]."
        )
        for name, (best, times) in self.regrets().items():
            yield f"{name}: {times} times the step of {best}, the best fixed choice."
        yield from (f"{name} left out: {why}" for name, why in self.left_out.items())
        yield self.ran_on()


def _number(value: float | None, form: str, unit: float = 1) -> str:
    return "-" if value is None else format(unit * value, form)


def _row(name: str, setup: CodecBench, rounds: list[list[Any]], study: list[Any] | None, whole: list[Any]) -> Row:
    seconds = [max(seconds for seconds, _ in workers) / setup.steps for workers in rounds]
    sent = [[Sent(*sent) for _, sent in workers] for workers in rounds] if setup.link else []
    row = Row(
        name=name,
        seconds=seconds,
        sent_bytes=[sum(one.bytes for one in workers) / setup.workers / setup.steps for workers in sent],
        payload_bytes=[sum(one.payload for one in workers) / setup.workers / setup.steps for workers in sent],
        wire_bytes=None if name == NOOP else whole[0]["wire_bytes"],
    )
    if study is None:
        return row
    slowest = [max(turn, key=sum) for turn in zip(*(worker["seconds"] for worker in study), strict=True)]
    known = study[0]
    return replace(row, wire_bytes=known["wire_bytes"], computing=[tuple(one) for one in slowest], error=known["error"])
