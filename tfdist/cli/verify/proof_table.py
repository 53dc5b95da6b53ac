"""The verification of a script: the jobs to run, the table of differences, and the exit code."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tfdist.cli.common.option_parts import write_json
from tfdist.cli.common.progress import Phases, screen, unwinding
from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError
from tfdist.jobs.plan.launch_config import (
    LaunchConfig,
    check_strategy,
    require_installed,
    require_valid_script,
    server_count,
)
from tfdist.validation import counted
from tfdist.variables import COLLECTIVES
from tfdist.verify import column
from tfdist.verify.column import Column
from tfdist.verify.proof.proving import Job, Outcome, Proof, prove, to_json

TIMEOUT_SECONDS = 600.0
_REPLICAS = 2
_MOST_ROWS = 12
_STYLES = {Outcome.SAME: "green", Outcome.DIFFERS: "red", Outcome.NOT_COMPARED: "yellow", Outcome.FAILED: "red"}
_KINDS = {"slot": "optimizer slot", "log": "log or metric"}


def jobs(
    names: Sequence[str], options: Mapping[str, Any], script: tuple[str, ...], *, is_module: bool, **settings: Any
) -> list[Job]:
    """Return a job for each named strategy and column; two mirrored replicas by default."""
    given = {name: str(value) for name, value in options.items() if value is not None}
    chosen: list[tuple[str, tuple[str, ...], Mapping[str, str]]] = []
    for name in names or ["multi-worker" if "-n" in given else "mirrored"]:
        if name in strategy_table.names():
            shown = " ".join([name, *(f"{option} {value}" for option, value in given.items())])
            chosen.append((shown, _run_options(name, given, script[0], is_module), {}))
        elif given:
            raise ConfigError(
                f"--strategy is {name!r}, a column of the matrix, which says {', '.join(given)} itself. Leave these "
                f"out, or name a strategy: {', '.join(strategy_table.names())}."
            )
        else:
            chosen += [(one.name, *_of_column(one, script[0], is_module)) for one in column.select([name])]
    return [
        Job(name=shown, run=run, variables=variables, script=script, is_module=is_module, **settings)
        for shown, run, variables in chosen
    ]


def _run_options(name: str, given: Mapping[str, str], script: str, is_module: bool) -> tuple[str, ...]:
    """Return the options of `tfdist run` for a strategy; two replicas by default."""
    several = "--replicas-per-worker" if strategy_table.get(name).processes == "one" else "-n"
    options = {**given} if several in given or "--mesh" in given else {several: str(_REPLICAS), **given}
    servers = options.get("--parameter-servers")
    config = LaunchConfig(
        target=script,
        is_module=is_module,
        strategy=name,
        workers=int(options.get("-n", 1)),
        replicas_per_worker=int(options["--replicas-per-worker"]) if "--replicas-per-worker" in options else None,
        parameter_servers=server_count(name, parameter_servers=None if servers is None else int(servers)),
        environment={COLLECTIVES.name: options["--collectives"]} if "--collectives" in options else {},
    )
    check_strategy(config)
    require_installed(config)
    require_valid_script(config)
    return ("--strategy", name, *(word for pair in options.items() for word in pair))


def _of_column(one: Column, script: str, is_module: bool) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the options of `tfdist run`, and the variables, for a column of the matrix."""
    if strategy_table.get(one.strategy).processes == "chief":  # the replicas of a chief are workers
        given = {"-n": str(one.replicas_per_worker), "--parameter-servers": "2"}
    else:
        given = {"-n": str(one.workers), "--replicas-per-worker": str(one.replicas_per_worker)}
    return _run_options(one.strategy, given, script, is_module), dict(one.variables)


def run(wanted: Sequence[Job], json_path: str | None) -> int:
    """Verify each job, print the results, and return the worst exit code; 1 takes precedence over others."""
    proofs: list[Proof] = []
    console = screen()
    with unwinding(), Phases() as phases:
        for job in wanted:
            proofs.append(prove(job, on_run=phases.update))
            if json_path != "-":
                _print(proofs[-1], console)
    write_json(to_json(proofs), json_path)
    codes = {one.outcome.value for one in proofs}
    return Outcome.DIFFERS.value if Outcome.DIFFERS.value in codes else max(codes)


def _print(proof: Proof, console: Console) -> None:
    style = _STYLES[proof.outcome]
    if proof.outcome is Outcome.DIFFERS:
        table = Table("first at step", "what", "name", "by", "at most by", "there", box=None, padding=(0, 2))
        for one in proof.differences[:_MOST_ROWS]:
            kind = _KINDS.get(one.kind, one.kind)
            sizes = [_size(one.size), _size(one.largest)]
            table.add_row(str(one.step), kind, escape(one.name), *sizes, escape(one.where), style=None)
        console.print(table)
        if len(proof.differences) > _MOST_ROWS:
            console.print(f"  and {len(proof.differences) - _MOST_ROWS} more", highlight=False)
    console.print(f"[{style}]{escape(_verdict(proof))}[/{style}]", highlight=False)
    for sentence in (*proof.hints, *(f"not compared: {one}" for one in proof.left_out)):
        console.print(escape(f"  {sentence}"), highlight=False)


def _size(size: float) -> str:
    return "-" if size == float("inf") else f"{size:.1e}"


def _verdict(proof: Proof) -> str:
    steps = counted(proof.steps, "step")
    on = f"{counted(proof.replicas, 'replica')} in {counted(proof.workers, 'process', 'processes')}"
    if proof.outcome is Outcome.SAME:
        counts = (proof.compared or {}).items()
        named = {**_KINDS, "log": "log"}
        kinds = ", ".join(counted(count, named.get(kind, kind)) for kind, count in counts)
        return (
            f"{proof.strategy}: the same as one device, after each of {steps} on {on}: {kinds}; the largest difference "
            f"is {proof.largest:.1e}"
        )
    if proof.outcome is Outcome.DIFFERS:
        first = proof.differences[0]
        kind = _KINDS.get(first.kind, first.kind)
        return f"{proof.strategy}: differs from one device ({on}), first at step {first.step}: {kind} {first.name}"
    return f"{proof.strategy}: {'not compared' if proof.outcome is Outcome.NOT_COMPARED else 'failed'}: {proof.text}"
