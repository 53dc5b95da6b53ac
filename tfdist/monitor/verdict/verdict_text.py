"""A verdict in five lines: what, where, how much, the evidence, and what to do next."""

from tfdist.monitor.verdict.job_bound import Bound, Verdict
from tfdist.monitor.verdict.step_parts import COMPUTING, Part

_WHAT = {
    Part.INPUT: "waits for its input",
    Part.FORWARD: "takes longer for its forward pass",
    Part.BACKWARD: "takes longer for its backward pass",
    Part.COMPUTE: "computes longer",
    Part.COMMUNICATION: "exchanges weights and gradients with the servers for longer",
    Part.UPDATE: "takes longer to update its weights",
    Part.CHECKPOINT: "writes checkpoints",
    Part.PYTHON: "is in Python between steps",
}
_NEXT_OF_PART = {
    Part.INPUT: "look at the input and the disk of that worker: tfdist doctor, on its machine",
    Part.FORWARD: "tfdist doctor, on the machine of that worker: other programs, clock of the processor, memory",
    Part.BACKWARD: "tfdist doctor, on the machine of that worker: other programs, clock of the processor, memory",
    Part.COMPUTE: "tfdist doctor, on that worker's machine; if it stays slow: tfdist.callbacks.BalanceShares",
    Part.COMMUNICATION: "ping from that worker's machine to the servers', and what else sends there: tfdist doctor",
    Part.UPDATE: "look at what that worker alone does in its optimizer, and at its memory: tfdist doctor",
    Part.CHECKPOINT: "save less often, or to a faster disk",
    Part.PYTHON: "look at the callbacks of that worker: py-spy dump --pid PID",
}
_NEXT = {
    Bound.UNKNOWN: "let it run for more steps",
    Bound.UNEVEN: "look for other programs on the machines, or fewer threads for each worker: tfdist doctor",
    Bound.INPUT: "cache, batch before map, prefetch, or write TFRecord files: tfdist data write",
    Bound.COMPUTING: "tfdist tune: a larger batch; or mixed precision, or more workers",
    Bound.COMMUNICATION: 'tfdist bench all-reduce; then DistributedOptimizer(compression="auto"), or a larger batch',
    Bound.UPDATE: "tfdist run --strategy sharded-data-parallel: each worker updates its part of the weights",
    Bound.CHECKPOINT: "save less often, or to a faster disk",
    Bound.PYTHON: "model.compile(steps_per_execution=20), or less work in callbacks",
}
_NEXT_WITH_SERVERS = {
    Bound.COMMUNICATION: 'a larger batch; more --parameter-servers; or DistributedOptimizer(compression="qsgd-8")',
    Bound.UPDATE: "more --parameter-servers, each of which updates its part of the weights; or a larger batch",
}


def lines(verdict: Verdict) -> tuple[str, ...]:
    """Format the verdict as five lines of text."""
    if verdict.bound is Bound.UNKNOWN:
        return (
            f"verdict    too few steps: {verdict.steps} were seen on all workers, 20 are needed",
            "where      -",
            "won        -",
            "evidence   steps in which a function is traced do not count, nor do those of validation",
            f"next       {_NEXT[verdict.bound]}",
        )
    return (
        f"verdict    bound by {verdict.bound}",
        f"where      {_where(verdict)}",
        f"won        {_won(verdict)}",
        f"evidence   {_evidence(verdict)}",
        f"next       {_next(verdict)}",
    )


def labelled(verdict: Verdict) -> dict[str, dict[str, float]]:
    """Return the seconds of each part by the worker and the part's label."""
    return {
        str(rank): {part.label: round(float(row[part]), 9) for part in Part}
        for rank, row in zip(verdict.ranks, verdict.means, strict=True)
    }


def _where(verdict: Verdict) -> str:
    if verdict.rank is not None and verdict.part is not None:
        return f"worker {verdict.rank} {_WHAT[verdict.part]}"
    if verdict.bound is Bound.UNEVEN:
        return "no worker comes last often enough, or does one thing longer, to be named"
    who = "all workers" if len(verdict.ranks) > 1 else f"worker {verdict.ranks[0]}"
    return f"{who}, alike" if len(verdict.ranks) > 1 else who


def _won(verdict: Verdict) -> str:
    if verdict.bound is Bound.COMPUTING:
        return f"nothing beside it takes a large part of a step of {_ms(verdict.step_seconds)}"
    left = verdict.step_seconds - verdict.won_seconds
    return f"{verdict.won:.0%} of a step: {_ms(verdict.step_seconds)} now, {_ms(left)} without it"


def _evidence(verdict: Verdict) -> str:
    if verdict.rank is not None and verdict.part is not None:
        place = verdict.ranks.index(verdict.rank)
        parts = list(COMPUTING) if verdict.part is Part.COMPUTE and verdict.is_divided else [verdict.part]
        seconds = verdict.means[:, parts].sum(axis=1)
        mine, others = seconds[place], [seconds[i] for i in range(len(verdict.ranks)) if i != place]
        other = sorted(others)[len(others) // 2]
        return (
            f"{verdict.part.label} {_ms(mine)} there, {_ms(other)} elsewhere; last in {verdict.often:.0%} of "
            f"{verdict.steps} steps; explains {verdict.explained:.0%} of what others wait"
        )
    middle = sorted(range(len(verdict.ranks)), key=lambda i: -verdict.means[i, Part.WAIT])[len(verdict.ranks) // 2]
    row = verdict.means[middle]
    shown = sorted((part for part in Part if row[part] > 0.005 * verdict.step_seconds), key=lambda part: -row[part])
    text = ", ".join(f"{part.label} {_ms(row[part])}" for part in shown[:5])
    return f"{text} (worker {verdict.ranks[middle]}; means of {verdict.steps} steps, pauses left out)"


def _next(verdict: Verdict) -> str:
    if verdict.has_servers and verdict.bound in _NEXT_WITH_SERVERS:
        return _NEXT_WITH_SERVERS[verdict.bound]
    return (
        _NEXT_OF_PART[verdict.part] if verdict.rank is not None and verdict.part is not None else _NEXT[verdict.bound]
    )


def _ms(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1e3 * seconds:.1f} ms"
