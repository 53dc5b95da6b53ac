"""Translate the options of `tfdist run` about other hosts and about queued jobs."""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import click

from tfdist.cli.common.command import arguments_of, without_options
from tfdist.errors import MissingDependencyError
from tfdist.jobs import LaunchConfig, require_script
from tfdist.jobs.launchers import slurm
from tfdist.jobs.launchers.launcher import Launcher
from tfdist.jobs.launchers.launcher_table import LAUNCHERS, table
from tfdist.jobs.plan.host_plan import Demand, Remote, parse_hosts, parse_shell, places
from tfdist.jobs.plan.roles import tasks

# options by the fields of `Demand` that they set
DEMANDS = {
    "address": "--ray-address",
    "cpus": "--cpus-per-worker",
    "gpus": "--gpus-per-worker",
    "memory": "--memory-per-worker",
    "wait_seconds": "--wait-seconds",
}


@dataclass(frozen=True, kw_only=True)
class Submission:
    """The options of a job that is submitted to a queue.

    Attributes:
        demand: what each worker needs, by fields of `Demand`.
        python: the interpreter there.
        passed: names of variables that go along.
        dry_run: whether to print what would be submitted.
        sbatch: options of sbatch.
        sbatch_servers: options of sbatch for a chief and parameter servers, in a component of their own.
        search: values of arguments, as `--search` has them.
    """

    demand: Mapping[str, Any]
    python: str | None
    passed: tuple[str, ...]
    dry_run: bool
    sbatch: str
    sbatch_servers: str | None
    search: tuple[str, ...]

    def require_no_sbatch(self) -> None:
        if self.search or self.sbatch_servers is not None:
            given = "--search" if self.search else "--sbatch-servers"
            raise click.UsageError(f"{given} is for a job that --engine slurm submits. Leave it out.")


def show_launchers(context: click.Context, _option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        click.echo(table())
        context.exit()


def launcher_of(name: str | None, hosts: str | None) -> Launcher:
    """The requested launcher; ssh if only hosts are named."""
    return LAUNCHERS[name or ("local" if hosts is None else "ssh")]


def remote_of(
    launcher: Launcher,
    hosts: str | None,
    *,
    commands: Mapping[str, str | None] = MappingProxyType({}),
    python: str | None = None,
    passed: tuple[str, ...] = (),
    rendezvous: str | None = None,
    key_file: str | None = None,
    demand: Mapping[str, Any] = MappingProxyType({}),
) -> Remote | None:
    """How other hosts are reached; None for this host, and for a job that is yet to be submitted."""
    given = {name: value for name, value in demand.items() if value is not None}
    _check_demand(launcher, given)
    if hosts is not None and launcher.without_hosts:
        raise click.UsageError(f"--engine {launcher.name} {launcher.without_hosts}, and --hosts {hosts} names others.")
    if "address" in launcher.accepts:
        return Remote(
            hosts=(),
            launcher=launcher.name,
            python=python or None,
            passed=passed,
            rendezvous=rendezvous or "",
            demand=Demand(**given),
        )
    found = launcher.hosts(os.environ) if hosts is None else parse_hosts(hosts)
    if not found and (launcher.submits or not launcher.no_hosts):
        return None
    of_a_worker = [DEMANDS[name] for name in given if name != "gpus"]
    if of_a_worker and launcher.decided:
        raise click.UsageError(f"{', '.join(of_a_worker)}: {launcher.decided}")
    if not found:
        raise click.UsageError(f"--engine {launcher.name}: no hosts are known. {launcher.no_hosts}")
    if rendezvous is not None and not launcher.takes_rendezvous:
        able = [one.name for one in LAUNCHERS.values() if one.takes_rendezvous]
        raise click.UsageError(f"--rendezvous {rendezvous} is for --engine {', '.join(able)}, where hosts join.")
    command = commands.get(launcher.name)
    remote = Remote(
        hosts=found,
        launcher=launcher.name,
        shell=parse_shell(command, name=f"--{launcher.name}-command") if command is not None else (launcher.program,),
        python=python or None,
        passed=passed,
        rendezvous=rendezvous or "",
    )
    return launcher.complete(remote, os.environ, key_file=key_file)


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
    """Check that the named hosts take as many processes as the job may have."""
    if config.remote is not None and config.remote.demand is None:
        places(config.remote.hosts, most_processes(config), servers=config.parameter_servers)


def most_processes(config: LaunchConfig) -> int:
    """The most processes that the job may have, chief and parameter servers included."""
    return len(tasks(replace(config, workers=config.range[1])))


def commands_of_hosts(config: LaunchConfig) -> Iterator[str]:
    if config.remote is not None:
        yield from LAUNCHERS[config.remote.launcher].shown(config.remote, len(tasks(config)), os.environ)


def submit_batch(context: click.Context, config: LaunchConfig, submission: Submission) -> int:
    """Print the batch script, or submit it and wait for its end; return the exit code."""
    searched = slurm.searches(submission.search)
    text = _batch_script(context, config, submission, searched)
    if submission.dry_run:
        click.echo(text, nl=False)
        return 0
    if shutil.which("sbatch") is None:
        raise MissingDependencyError(
            "--engine slurm needs sbatch, which is not found. Run it where Slurm's commands are; --dry-run prints the "
            "batch script."
        )
    return slurm.submit(text, say=say, searched=searched)


def _batch_script(
    context: click.Context, config: LaunchConfig, submission: Submission, searched: Sequence[Sequence[str]]
) -> str:
    for_servers = submission.sbatch_servers
    if for_servers is not None and searched:
        raise click.UsageError("--search and --sbatch-servers are given; Slurm has no arrays of heterogeneous jobs.")
    if for_servers is not None and not config.parameter_servers:
        raise click.UsageError(
            f"--sbatch-servers {for_servers!r} is for a chief and parameter servers, and the job has none; give "
            "--sbatch alone, or --strategy parameter-server."
        )
    require_script(config)
    given = arguments_of(context)
    first = len(given) - len(config.arguments) - 1  # the script; everything after it is its own
    return slurm.script(
        [*without_options(given[:first], slurm.OF_THE_SUBMISSION), *given[first:]],
        name=Path(config.target).stem,
        processes=most_processes(config),
        folder=os.getcwd(),
        python=submission.python or sys.executable,
        of_each=slurm.resources(**submission.demand),
        options=submission.sbatch,
        servers=config.parameter_servers,
        for_servers=for_servers,
        searched=searched,
    )


def say(text: str) -> None:
    click.echo(f"tfdist run: {text}", err=True)
