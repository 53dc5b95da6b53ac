"""``tfdist run``: parse, call `tfdist.jobs`, print."""

import os
import secrets
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from tfdist import variables
from tfdist.cli.common import kubernetes_options
from tfdist.cli.common.command import PASSES_ARGUMENTS, Command
from tfdist.cli.common.host_options import (
    HostOptions,
    commands_of_hosts,
    launcher_of,
    remote_of,
    require_places,
    say,
    show_launchers,
    submit_batch,
    worker_count,
)
from tfdist.cli.common.option_parts import OutputFile, complete_strategies, field_options
from tfdist.cluster import strategy_table
from tfdist.cluster.mesh import Mesh
from tfdist.cluster.strategy_table import COLLECTIVES
from tfdist.gradients.outer import meeting_schedules
from tfdist.jobs import LaunchConfig, WorkerSpec, planned, require_script, run
from tfdist.jobs.launchers.launcher import Launcher
from tfdist.jobs.output import tf_log_filter
from tfdist.jobs.plan.host_plan import Remote
from tfdist.jobs.plan.launch_config import (
    COPY_BANDWIDTH,
    DEFAULT_RESTARTS,
    check_strategy,
    require_installed,
    server_count,
)
from tfdist.options import options_of
from tfdist.validation import as_bytes

_MESHED = ("model-parallel", "pipeline")
_MISPLACED = ("workers", "strategy", "hosts", "launcher_name", "max_restarts", "shares", "replicas_per_worker")
_NOT_GIVEN = (None, ParameterSource.DEFAULT, ParameterSource.ENVIRONMENT)
_SUBMIT = {"slurm": submit_batch, "kubernetes": kubernetes_options.submit}


@click.command(
    cls=Command,
    context_settings=PASSES_ARGUMENTS,
    groups={
        "What runs": (
            *("strategy", "mesh", "collectives", "workers", "replicas_per_worker", "shares"),
            *("parameter_servers", "is_module", "hosts"),
        ),
        "When workers fail, hang or are slow": ("max_restarts", "standby", "evict_stragglers", "hang_seconds"),
        "Another number of workers while it runs (tfdist resize)": ("min_workers", "max_workers"),
        "What is shown": ("monitor", "exporters", "trace", "dry_run", "all_logs", "event_file"),
    },
    examples={
        "tfdist run -n 2 train.py --epochs 3": "two workers on this machine",
        "tfdist run --strategy mirrored --replicas-per-worker 2 train.py": "one process, two replicas",
        "tfdist run --strategy ring -n 2 --max-restarts 3 train.py": "continues after failures",
    },
    epilog="Exit code: 0 when all ended well, 2 for a wrong request, else that of the process that failed first.",
    page="run",
    tells_all=True,
)
@field_options(
    LaunchConfig,
    {
        "strategy": {"shell_complete": complete_strategies},
        "event_file": {"type": OutputFile(appends=True)},
        "trace": {"type": OutputFile()},
        "gpus_per_worker": {"type": float},  # with Ray, workers can share a GPU
        "copy_bandwidth": {"type": str},  # as 64MB
    },
)
@click.option(
    "--mesh", metavar="AXES", envvar=variables.MESH.name, help="Mesh, as batch=2,model=2 or data=2,pipeline=2."
)
@click.option(
    "--collectives", metavar="NAME", type=click.Choice(COLLECTIVES), help=f"Backend of sums: {', '.join(COLLECTIVES)}."
)
@click.option("--verbose", is_flag=True, hidden=True, help="Report which processes are started and ended.")
@click.option(
    "--synchronization",
    metavar="SCHEDULE",
    envvar=variables.SYNCHRONIZATION.name,
    hidden=True,
    help="How seldom workers meet, as local-sgd:every=8.",
)
@click.option(
    "--engines",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    hidden=True,
    callback=show_launchers,
    help="List the launchers.",
)
@field_options(
    HostOptions,
    {"key_file": {"type": click.Path(dir_okay=False)}, "pod": {"type": click.Path(exists=True, dir_okay=False)}},
)
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    /,
    *,
    mesh: str | None,
    collectives: str | None,
    synchronization: str | None,
    verbose: bool,
    script: str,
    arguments: tuple[str, ...],
    **asked: Any,
) -> None:
    """Start SCRIPT on N workers; when one fails, end all or restart them.

    SCRIPT runs as `python SCRIPT ARGUMENTS`, once per worker; with parameter servers once, on the chief. All
    words after SCRIPT are its arguments. More machines: tfdist docs cluster.
    """
    places = HostOptions(
        gpus_per_worker=asked["gpus_per_worker"],
        **{one.name: asked.pop(one.name) for one, _ in options_of(HostOptions)},
    )
    launcher = launcher_of(places.launcher_name, places.hosts)
    kubernetes_options.check_options(places, launcher)
    remote = remote_of(launcher, places)
    _tell_misplaced(context, script, arguments)
    given = {variables.COLLECTIVES: collectives, variables.MESH: mesh, variables.SYNCHRONIZATION: synchronization}
    config = _config(asked, remote, launcher, given=given, script=(script, *arguments))
    check_strategy(config)
    if config.exporters:
        from tfdist.monitor.exporters.exporter import parse_all

        parse_all(config.exporters, option="--export")
    if launcher.submits and remote is None:
        context.exit(_SUBMIT[launcher.name](context, config, places))
    places.require_no_sbatch()
    require_places(config)
    if not places.dry_run:
        require_installed(config)
        context.exit(launcher.run(lambda: run(config, verbose=verbose).exit_code, say=say))
    require_script(config)
    job_id = secrets.token_hex(8)
    directory = Path(tempfile.gettempdir(), f"tfdist-{job_id}")
    for line in commands_of_hosts(config):
        click.echo(line)
    for spec in planned(config, job_id=job_id, directory=directory, agent_pid=0):
        click.echo(described(spec))


def _config(
    asked: Mapping[str, Any],
    remote: Remote | None,
    launcher: Launcher,
    *,
    given: Mapping[variables.Variable[str], str | None],
    script: Sequence[str],
) -> LaunchConfig:
    strategy, mesh, collectives = asked["strategy"], given[variables.MESH], given[variables.COLLECTIVES]
    _check_synchronization(strategy, given[variables.SYNCHRONIZATION])
    servers = server_count(strategy, parameter_servers=asked["parameter_servers"])
    workers = worker_count(asked["workers"], remote, servers)
    _check_mesh(strategy, collectives, mesh, is_elastic=bool(asked["min_workers"] or asked["max_workers"]))
    if mesh:
        Mesh.parse(mesh, name="--mesh").require_size(workers, asked["replicas_per_worker"] or 1, f"-n {workers}")
    restarts, rate = asked["max_restarts"], asked["copy_bandwidth"]
    records = asked["trace"] is not None or bool(asked["exporters"]) or asked["evict_stragglers"]
    decided = {
        "workers": workers,
        "parameter_servers": servers,
        "gpus_per_worker": None if launcher.assigns_gpus else _whole(asked["gpus_per_worker"]),
        "max_restarts": DEFAULT_RESTARTS if servers and restarts is None else restarts or 0,
        "monitor": asked["monitor"] or records,
        "copy_bandwidth": COPY_BANDWIDTH if rate is None else _rate(rate),
    }
    environment = {
        **tf_log_filter.variables(os.environ, all_logs=asked["all_logs"]),
        **{one.name: value for one, value in given.items() if value},
    }
    target, *arguments = script
    return LaunchConfig(
        target=target, arguments=tuple(arguments), remote=remote, environment=environment, **{**asked, **decided}
    )


def _tell_misplaced(context: click.Context, script: str, arguments: Sequence[str]) -> None:
    """Say which options of this command stand behind the script, which gets them; it may have one of that name."""
    for option in context.command.params:
        given = sorted({*option.opts} & {*arguments})
        if option.name in _MISPLACED and given and context.get_parameter_source(option.name) in _NOT_GIVEN:
            say(f"{given[0]} stands after {script}, so the script gets it; options of tfdist run stand before it")


def _rate(text: str) -> int:
    """Return bytes per second; 0 is allowed."""
    return 0 if text.strip() == "0" else as_bytes(text)


def _whole(count: float | None) -> Any:
    """Return a whole number as an int, and other numbers unchanged; later checks may refuse those."""
    return int(count) if count is not None and count.is_integer() else count


def _check_synchronization(strategy: str | None, synchronization: str | None) -> None:
    if not synchronization:
        return
    meeting_schedules.parse(synchronization, name="--synchronization")
    able = [name for name in strategy_table.names() if strategy_table.get(name).may_meet_seldom]
    if strategy is not None and strategy not in able:
        raise click.UsageError(
            f"--synchronization {synchronization} is for --strategy {' and '.join(able)}, whose workers have weights "
            f"of their own, and the strategy is {strategy}. Leave one of the two out."
        )


def _check_mesh(strategy: str | None, collectives: str | None, mesh: str | None, *, is_elastic: bool) -> None:
    if collectives and strategy and collectives not in strategy_table.get(strategy).collectives:
        takers = [name for name in strategy_table.names() if collectives in strategy_table.get(name).collectives]
        raise click.UsageError(
            f"--collectives {collectives} is for --strategy {' and '.join(takers)}, and the strategy is "
            f"{strategy}, which has collectives of its own. Leave one of the two out."
        )
    if strategy in _MESHED and is_elastic:
        raise click.UsageError(f"--strategy {strategy} has as many workers as its mesh has places; leave -n as it is.")
    if mesh and strategy not in (None, *_MESHED):
        raise click.UsageError(
            f"--mesh {mesh} is for --strategy {' and '.join(_MESHED)}, and the strategy is {strategy}."
        )


def described(spec: WorkerSpec) -> str:
    """Return the variables and the command of a process as lines for a shell.

    Example:
        >>> from tfdist.cluster import TaskId
        >>> more = dict(argv=("python", "a b"), environment={"A": "1"}, error_file=Path("e"))
        >>> print(described(WorkerSpec(index=0, task=TaskId(type="worker", index=0), **more)))
        # worker 0
        export A=1
        python 'a b'
    """
    variables = [f"export {name}={shlex.quote(value)}" for name, value in spec.environment.items()]
    removed = [f"unset {name}" for name in spec.removed]
    devices = [] if spec.gpus is None else [f"# sees of its host's GPUs: {', '.join(map(str, spec.gpus)) or 'none'}"]
    return "\n".join([f"# {spec.task}", *devices, *variables, *removed, shlex.join(spec.argv)])
