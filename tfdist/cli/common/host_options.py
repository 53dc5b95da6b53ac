"""The translation of the options of `tfdist run` about other hosts and about queued jobs."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from tfdist.cli.common.command import arguments_of, without_options
from tfdist.errors import MissingDependencyError
from tfdist.jobs import LaunchConfig, require_script
from tfdist.jobs.launchers import slurm
from tfdist.jobs.launchers.kubernetes.pods import KINDS
from tfdist.jobs.launchers.launcher import Launcher
from tfdist.jobs.launchers.launcher_table import LAUNCHERS, table
from tfdist.jobs.plan.host_plan import Demand, Remote, parse_hosts, parse_shell, places
from tfdist.jobs.plan.roles import tasks
from tfdist.options import option
from tfdist.validation import as_bytes
from tfdist.variables import MPI_COMMAND, REMOTE_PYTHON, SSH_COMMAND

# the options, by the fields of `Demand` that they set
DEMANDS = {
    "address": "--ray-address",
    "cpus": "--cpus-per-worker",
    "gpus": "--gpus-per-worker",
    "memory": "--memory-per-worker",
    "wait_seconds": "--wait-seconds",
}

_hidden = partial(option, is_hidden=True)
_text = partial(_hidden, None, kind=str)


@dataclass(frozen=True, kw_only=True)
class HostOptions:
    """The options of `tfdist run` about other hosts and queued jobs; docs/cluster.md describes the hidden ones."""

    dry_run: bool = option(False, "Print each process; start nothing.")
    hosts: str | None = option(None, "Hosts to run on, as a:2,b:2; by ssh or by --engine.", kind=str, metavar="HOSTS")
    launcher_name: str | None = _hidden(
        None,
        "Launcher of the workers; --engines lists all.",
        kind=str,
        flags=("--engine",),
        choices=tuple(LAUNCHERS),
        metavar="NAME",
    )
    sbatch: str = _hidden("", "Options of sbatch, for jobs that are submitted to Slurm.", metavar="OPTIONS")
    sbatch_servers: str | None = _text("Options of sbatch, for chief and parameter servers.", metavar="OPTIONS")
    search: tuple[str, ...] = _hidden(
        (), "Submit an array of jobs, one for each value; several.", metavar="NAME=VALUE,VALUE"
    )
    ssh_command: str | None = _text("Command in place of ssh.", metavar="COMMAND", variable=SSH_COMMAND.name)
    mpi_command: str | None = _text("Command in place of mpirun.", metavar="COMMAND", variable=MPI_COMMAND.name)
    rendezvous: str | None = _text("Address at which hosts join, for --engine agent and mpi.", metavar="ADDRESS[:PORT]")
    key_file: str | None = _text("File with the key of the job, for --engine agent.", metavar="PATH")
    remote_python: str | None = _text("Python on the other hosts.", metavar="PATH", variable=REMOTE_PYTHON.name)
    pass_env: tuple[str, ...] = _hidden((), "A variable that workers on other hosts get; several.", metavar="NAME")
    ray_address: str | None = _text("Address of the cluster of Ray.", metavar="ADDRESS", variable="RAY_ADDRESS")
    cpus_per_worker: float | None = _hidden(None, "CPUs that each worker is given.", kind=float, metavar="C")
    gpus_per_worker: float | None = None  # an option of `LaunchConfig`
    memory_per_worker: str | None = _text("Memory that each worker is given, as 16G.", metavar="SIZE")
    wait_seconds: float | None = _hidden(
        None, "Seconds until Ray must have room for all workers.", kind=float, metavar="S"
    )
    # options of a job for Kubernetes
    image: str | None = _text("Image of the containers, for Kubernetes.", metavar="IMAGE")
    namespace: str | None = _text("Namespace of the job, for Kubernetes.", metavar="NAME")
    kind: str | None = _text("Kind of the job, for Kubernetes.", choices=KINDS)
    name: str | None = _text("Name of the job, for Kubernetes.", metavar="NAME")
    topology: str | None = _text("A label of nodes that must be alike for all pods.", metavar="LABEL")
    pod: str | None = _text("A pod template, for Kubernetes.", metavar="FILE")

    @property
    def of_worker(self) -> dict[str, Any]:
        """The resources that each worker needs, as fields of `Demand`."""
        memory = None if self.memory_per_worker is None else as_bytes(self.memory_per_worker)
        return {"cpus": self.cpus_per_worker, "gpus": self.gpus_per_worker, "memory": memory}

    def require_no_sbatch(self) -> None:
        if self.search or self.sbatch_servers is not None:
            given = "--search" if self.search else "--sbatch-servers"
            raise click.UsageError(f"{given} is for a job that --engine slurm submits. Leave it out.")


def show_launchers(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(table())
        context.exit()


def launcher_of(name: str | None, hosts: str | None) -> Launcher:
    """Return the requested launcher; ssh if only hosts are named."""
    return LAUNCHERS[name or ("local" if hosts is None else "ssh")]


def remote_of(launcher: Launcher, asked: HostOptions) -> Remote | None:
    """Return the other hosts of a job; None if it runs on this host, or is only to be submitted."""
    address = asked.ray_address if "address" in launcher.accepts else None  # RAY_ADDRESS may be set for other programs
    demand = {**asked.of_worker, "address": address, "wait_seconds": asked.wait_seconds}
    given = {name: value for name, value in demand.items() if value is not None}
    _check_demand(launcher, given)
    hosts = asked.hosts
    if hosts is not None and launcher.without_hosts:
        raise click.UsageError(f"--engine {launcher.name} {launcher.without_hosts}, and --hosts {hosts} names others.")
    ways: dict[str, Any] = {"launcher": launcher.name, "python": asked.remote_python or None, "passed": asked.pass_env}
    ways["rendezvous"] = asked.rendezvous or ""
    if "address" in launcher.accepts:
        return Remote(hosts=(), demand=Demand(**given), **ways)
    found = launcher.hosts(os.environ) if hosts is None else parse_hosts(hosts)
    if not found and (launcher.submits or not launcher.no_hosts):
        return None
    of_a_worker = [DEMANDS[name] for name in given if name != "gpus"]
    if of_a_worker and launcher.decided:
        raise click.UsageError(f"{', '.join(of_a_worker)}: {launcher.decided}")
    if not found:
        raise click.UsageError(f"--engine {launcher.name}: no hosts are known. {launcher.no_hosts}")
    if asked.rendezvous is not None and not launcher.takes_rendezvous:
        able = ", ".join(one.name for one in LAUNCHERS.values() if one.takes_rendezvous)
        raise click.UsageError(f"--rendezvous {asked.rendezvous} is for --engine {able}, where hosts join.")
    command = {"ssh": asked.ssh_command, "mpi": asked.mpi_command}.get(launcher.name)
    shell = (launcher.program,) if command is None else parse_shell(command, name=f"--{launcher.name}-command")
    return launcher.complete(Remote(hosts=found, shell=shell, **ways), os.environ, key_file=asked.key_file)


def _check_demand(launcher: Launcher, given: Mapping[str, Any]) -> None:
    refused = [name for name in given if name not in launcher.accepts]
    if not refused:
        return
    able = ", ".join(one.name for one in LAUNCHERS.values() if one.accepts.issuperset(refused))
    raise click.UsageError(
        f"{', '.join(DEMANDS[name] for name in refused)}: for --engine {able}. Leave it out; where hosts are named, "
        "place fewer workers on each: --hosts a:2,b:2"
    )


def worker_count(workers: int | None, remote: Remote | None, servers: int) -> int:
    """Return the given number of workers, or 1 on this host, or the places that chief and servers leave on hosts.

    Example:
        >>> remote = Remote(hosts=parse_hosts("a:2,b:2"))
        >>> worker_count(None, remote, 0), worker_count(None, remote, 1), worker_count(None, None, 0)
        (4, 2, 1)
    """
    if workers is not None:
        return workers
    return 1 if remote is None or not remote.hosts else max(1, remote.slots - (servers + 1 if servers else 0))


def require_places(config: LaunchConfig) -> None:
    if config.remote is not None and config.remote.demand is None:
        places(config.remote.hosts, most_processes(config), servers=config.parameter_servers)


def most_processes(config: LaunchConfig) -> int:
    """Return the largest number of processes of the job, including the chief and parameter servers."""
    return len(tasks(replace(config, workers=config.range[1])))


def commands_of_hosts(config: LaunchConfig) -> Iterator[str]:
    if config.remote is not None:
        yield from LAUNCHERS[config.remote.launcher].shown(config.remote, len(tasks(config)), os.environ)


def submit_batch(context: click.Context, config: LaunchConfig, asked: HostOptions) -> int:
    """Print the batch script, or submit it and wait for its end; return the exit code."""
    searched = slurm.searches(asked.search)
    text = _batch_script(context, config, asked, searched)
    if asked.dry_run:
        click.echo(text, nl=False)
        return 0
    if shutil.which("sbatch") is None:
        raise MissingDependencyError(
            "--engine slurm needs sbatch, which is not found. Run it where Slurm's commands are; --dry-run prints the "
            "batch script."
        )
    return slurm.submit(text, say=say, searched=searched)


def _batch_script(
    context: click.Context, config: LaunchConfig, asked: HostOptions, searched: Sequence[Sequence[str]]
) -> str:
    for_servers = asked.sbatch_servers
    if for_servers is not None and searched:
        raise click.UsageError("--search and --sbatch-servers are given; Slurm has no arrays of heterogeneous jobs.")
    if for_servers is not None and not config.parameter_servers:
        raise click.UsageError(
            f"--sbatch-servers {for_servers!r} is for a chief and parameter servers, and the job has none; give "
            "--sbatch alone, or --strategy parameter-server."
        )
    require_script(config)
    options, script = words_of(context, config)
    return slurm.script(
        [*without_options(options, slurm.OF_THE_SUBMISSION), *script],
        name=Path(config.target).stem,
        processes=most_processes(config),
        folder=os.getcwd(),
        python=asked.remote_python or sys.executable,
        grace_seconds=config.grace_seconds,
        of_each=slurm.resources(**asked.of_worker),
        options=asked.sbatch,
        servers=config.parameter_servers,
        for_servers=for_servers,
        searched=searched,
    )


def words_of(context: click.Context, config: LaunchConfig) -> tuple[Sequence[str], Sequence[str]]:
    """Return the options of the command, and the script with its arguments."""
    given = arguments_of(context)
    first = len(given) - len(config.arguments) - 1
    return given[:first], given[first:]


def say(text: str) -> None:
    click.echo(f"tfdist run: {text}", err=True)
