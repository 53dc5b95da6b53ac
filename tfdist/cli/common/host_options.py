"""Translate the options of `tfdist run` about other hosts and about queued jobs."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from tfdist.cli.common.command import arguments_of, without_options
from tfdist.cluster import job_key
from tfdist.errors import MissingDependencyError
from tfdist.jobs import LaunchConfig, require_script
from tfdist.jobs.plan.host_plan import Remote, parse_hosts, parse_shell, places
from tfdist.jobs.plan.resource_request import Demand
from tfdist.jobs.plan.roles import tasks
from tfdist.jobs.remote import mpirun, sbatch
from tfdist.jobs.remote.host_launchers import ENGINES, table
from tfdist.jobs.remote.pod import pod_of
from tfdist.jobs.remote.ray import ray_cluster
from tfdist.variables import JOB_KEY

# how the options are called by which Ray is asked
DEMANDS = {
    "address": "--ray-address",
    "cpus": "--cpus-per-worker",
    "gpus": "--gpus-per-worker",
    "memory": "--memory-per-worker",
    "wait_seconds": "--wait-seconds",
}
_OF_A_WORKER = ("cpus", "memory")  # which engines that submit a job hand on

_SUBMITS = ("slurm", "kubernetes")  # what runs there is the same command


def show_engines(context: click.Context, _option: click.Parameter, value: bool) -> None:
    """Print what each engine can, and end."""
    if value and not context.resilient_parsing:
        click.echo(table())
        context.exit()


def remote_of(
    engine: str | None,
    hosts: str | None,
    *,
    commands: Mapping[str, str | None] = MappingProxyType({}),
    python: str | None = None,
    passed: tuple[str, ...] = (),
    rendezvous: str | None = None,
    key_file: str | None = None,
    demand: Mapping[str, Any] = MappingProxyType({}),
) -> Remote | None:
    """Return how other hosts are reached; None for this one, and for a job that is yet to be submitted."""
    given = {name: value for name, value in demand.items() if value is not None}
    _check_demand(engine, given)
    if engine is None and hosts is None:
        return None
    if engine == "local":
        if hosts is not None:
            raise click.UsageError(f"--engine local runs on this machine, and --hosts {hosts} names others.")
        return None
    chosen = ENGINES[engine or "ssh"]
    if chosen.allots is not None:
        if hosts is not None:
            raise click.UsageError(
                f"--hosts {hosts} is given with --engine {chosen.name}, which chooses the nodes itself."
            )
        return Remote(
            hosts=(),
            engine=chosen.name,
            python=python or None,
            passed=passed,
            rendezvous=rendezvous or "",
            demand=Demand(**given),
        )
    if chosen.name == "kubernetes" and hosts is not None:
        raise click.UsageError(f"--engine kubernetes makes one pod for each process, and --hosts {hosts} names others.")
    found = chosen.hosts(os.environ) if hosts is None else parse_hosts(hosts)
    if not found and chosen.name in _SUBMITS:
        return None
    if chosen.name == "slurm" and (decided := [DEMANDS[name] for name in given if name in _OF_A_WORKER]):
        raise click.UsageError(
            f"{', '.join(decided)}: this runs in an allocation of Slurm, where that is decided. Ask for it there: "
            "salloc --cpus-per-task=4 --mem-per-cpu=2G"
        )
    if not found:
        raise click.UsageError(f"--engine {chosen.name}: no hosts are known. {chosen.without}")
    if chosen.name not in ("mpi", "agent") and rendezvous is not None:
        raise click.UsageError(f"--rendezvous {rendezvous} is for --engine mpi, agent and ray, where hosts join.")
    command = commands.get(chosen.name)
    pod = pod_of(os.environ) if chosen.name == "kubernetes" else None
    return Remote(
        hosts=found,
        engine=chosen.name,
        shell=parse_shell(command, name=f"--{chosen.name}-command") if command is not None else (chosen.program,),
        python=python or None,
        passed=passed,
        rendezvous=pod.rendezvous if pod else rendezvous or "",
        key=_key(key_file) if chosen.name == "agent" or pod else "",
    )


def _check_demand(engine: str | None, given: Mapping[str, Any]) -> None:
    """Check that the engine can give a worker what is asked for. GPUs of its host each can."""
    for_ray = [DEMANDS[name] for name in given if name not in (*_OF_A_WORKER, "gpus")]
    if for_ray and engine != "ray":
        raise click.UsageError(f"{', '.join(for_ray)}: for --engine ray alone. Leave it out.")
    of_a_worker = [DEMANDS[name] for name in given if name in _OF_A_WORKER]
    if of_a_worker and engine not in ("ray", *_SUBMITS):
        raise click.UsageError(
            f"{', '.join(of_a_worker)}: for --engine slurm, kubernetes and ray, which choose machines by it. Here "
            "workers run where they are told to, with what is there: place fewer on a host, as --hosts a:2,b:2 says."
        )


def _key(key_file: str | None) -> str:
    """Return the key by which agents join: that of the file, which is written if it is not there, or the variable's."""
    key = job_key.from_environment(os.environ) if key_file is None else job_key.from_file(Path(key_file), make=True)
    if key is None:
        raise click.UsageError(
            f"--engine agent needs a key that the hosts have too: --key-file PATH, or {JOB_KEY.name}. A file that "
            "is not there is written."
        )
    return key.hex()


def worker_count(workers: int | None, remote: Remote | None, servers: int) -> int:
    """Return the number of workers: as given, else 1, or as many as the hosts take beside a chief and its servers.

    Example:
        >>> remote = Remote(hosts=parse_hosts("a:2,b:2"))
        >>> worker_count(None, remote, 0), worker_count(None, remote, 1), worker_count(None, None, 0)
        (4, 2, 1)
    """
    if workers is not None:
        return workers
    return 1 if remote is None or not remote.hosts else max(1, remote.slots - (servers + 1 if servers else 0))


def require_places(config: LaunchConfig) -> None:
    """Check that the hosts, if any are named, take as many processes as the job may have."""
    if config.remote is not None and config.remote.demand is None:
        places(config.remote.hosts, most_processes(config), servers=config.parameter_servers)


def most_processes(config: LaunchConfig) -> int:
    """Return how many processes the job may have at most, chief and parameter servers included."""
    return len(tasks(replace(config, workers=config.range[1])))


def commands_of_hosts(config: LaunchConfig) -> Iterator[str]:
    """Yield, for each host, the command by which it is reached."""
    remote = config.remote
    if remote is None:
        return
    if remote.demand is not None:
        yield ray_cluster.shown(remote, len(tasks(config)))
    command = ENGINES[remote.engine].command
    if remote.engine == "mpi":
        yield f"# on each host, where ports and folders are chosen\n{mpirun.shown(remote, os.environ)}"
    for host in remote.hosts if remote.engine == "agent" else ():
        at = remote.rendezvous or "LAUNCHER:PORT"
        yield f"# on {host.name}, with the same key\ntfdist agent {at} --name {host.name}"
    for host in remote.hosts:
        words = () if command is None else command(remote, host, os.environ)
        if not words:
            continue
        yield f"# on {host.name}, where ports and folders are chosen\n{shlex.join(words)}"


def batch_script(
    context: click.Context,
    config: LaunchConfig,
    *,
    demand: Mapping[str, Any],
    python: str | None,
    options: str,
    for_servers: str | None = None,
    searched: Sequence[Sequence[str]] = (),
) -> str:
    """Return the batch script that runs the same command in an allocation of Slurm."""
    if for_servers is not None and searched:
        raise click.UsageError("--search and --sbatch-servers are given; Slurm has no arrays of heterogeneous jobs.")
    if for_servers is not None and not config.parameter_servers:
        raise click.UsageError(
            f"--sbatch-servers {for_servers!r} is for a chief and parameter servers, and the job has none; give "
            "--sbatch alone, or --strategy parameter-server."
        )
    require_script(config)
    given = arguments_of(context)
    first = len(given) - len(config.arguments) - 1  # the script, behind which all is its own
    return sbatch.script(
        [*without_options(given[:first], sbatch.OF_THE_SUBMISSION), *given[first:]],
        name=Path(config.target).stem,
        processes=most_processes(config),
        folder=os.getcwd(),
        python=python or sys.executable,
        of_each=sbatch.resources(**demand),
        options=options,
        servers=config.parameter_servers,
        for_servers=for_servers,
        searched=searched,
    )


def submit(text: str, *, dry_run: bool, searched: Sequence[Sequence[str]] = ()) -> int:
    """Print the batch script, or submit it and wait for its end; return the exit code."""
    if dry_run:
        click.echo(text, nl=False)
        return 0
    if shutil.which("sbatch") is None:
        raise MissingDependencyError(
            "--engine slurm needs sbatch, which is not found. Run it where Slurm's commands are; --dry-run prints the "
            "batch script."
        )
    return sbatch.submit(text, say=_say, searched=searched)


def run_in_allocation(launch: Callable[[], int]) -> int:
    """Run a job in an allocation of Slurm, as `sbatch.run_in_allocation`."""
    return sbatch.run_in_allocation(launch, say=_say)


def _say(text: str) -> None:
    click.echo(f"tfdist run: {text}", err=True)
