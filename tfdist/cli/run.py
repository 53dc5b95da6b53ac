"""``tfdist run``: parse, call `tfdist.launch`, print."""

import secrets
import shlex
import tempfile
from pathlib import Path

import click

from tfdist.errors import ConfigError
from tfdist.launch import LaunchConfig, WorkerSpec, planned, require_script, run

HELP = """Start SCRIPT on N local workers; end all of them when one fails.

SCRIPT runs as `python SCRIPT ARGUMENTS` would, once per worker. What follows its name is its own: tfdist reads none
of it.

\b
Usage:
  tfdist run train.py --epochs 3            one worker, all devices of this machine
  tfdist run -n 2 train.py --epochs 3       two workers on this machine
  tfdist run --strategy multi-worker -n 2 --replicas-per-worker 2 train.py
                                            2 x 2 replicas (without GPUs: logical CPU devices)
  tfdist run --strategy mirrored --replicas-per-worker 2 train.py
                                            one process, two replicas
  tfdist run -n 2 -m package.module         a module, as `python -m` does
  tfdist run --dry-run -n 2 train.py        show commands and variables, start nothing

\b
Across machines, let Slurm, Kubernetes, MPI or SageMaker start the script itself: it finds its place through
tfdist.cluster.from_environment(), with no launcher of ours.

\b
What each worker gets:
  TFDIST_WORKERS              addresses of all workers, "127.0.0.1:40001,127.0.0.1:40002"
  TFDIST_WORKER_INDEX         which of them it is, from 0; worker 0 is the chief
  TFDIST_LOCAL_WORKERS, TFDIST_LOCAL_INDEX   the same among the workers on this host
  TFDIST_JOB_ID               the same text on every worker of this run
  TFDIST_STRATEGY             with --strategy
  TFDIST_REPLICAS_PER_WORKER  with --replicas-per-worker
  TFDIST_ERROR_FILE           where its failure is recorded, as JSON
  TF_CONFIG                   with two or more workers, as plain TensorFlow reads it
  PYTHONUNBUFFERED            1, so that its output appears at once
  no_grpc_proxy               with 127.0.0.1, where a proxy is set: TensorFlow would send the workers there

\b
Output: with two or more workers every line begins with [worker I]; progress bars of the chief move on a terminal, and
elsewhere the last state of a bar is one line. NO_COLOR is respected. One worker has the terminal to itself.

\b
When a worker fails, the others get SIGTERM and, after the grace period, SIGKILL, with all their children. The report
names the worker that failed FIRST: the others fail after it, because they wait for it. A worker that ends with code 0
before the others is no failure. SIGINT, SIGTERM and SIGHUP are passed on to the workers, with the same grace period;
Ctrl-C again kills at once.

\b
Exit code:
  0        every worker ended with 0
  2        the request was wrong (nothing was started)
  other    that of the worker that failed first; 128 + N if signal N killed it
  130 143  ended by Ctrl-C, by SIGTERM (129: SIGHUP, 141: the output was closed)
"""


@click.command(
    help=HELP,
    context_settings={
        "allow_interspersed_args": False,
        "help_option_names": ["-h", "--help"],
        "max_content_width": 130,
    },
)
@click.option(
    "--strategy", metavar="NAME", envvar="TFDIST_STRATEGY", help="Strategy for tfdist.strategies.from_environment()."
)
@click.option("-n", "--workers", type=int, default=1, show_default=True, metavar="N", help="Number of workers.")
@click.option(
    "--replicas-per-worker",
    type=int,
    metavar="R",
    envvar="TFDIST_REPLICAS_PER_WORKER",
    help="Devices that each worker uses; all that it has by default.",
)
@click.option(
    "--grace-seconds",
    type=float,
    default=10.0,
    show_default=True,
    metavar="S",
    help="Between the request to end and SIGKILL.",
)
@click.option("--dry-run", is_flag=True, help="Print each worker's variables and command; start nothing.")
@click.option("--verbose", is_flag=True, help="Tell which processes are started and ended.")
@click.option("-m", "is_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(
    context: click.Context,
    *,
    strategy: str | None,
    workers: int,
    replicas_per_worker: int | None,
    grace_seconds: float,
    dry_run: bool,
    verbose: bool,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Start a script on local workers."""
    config = LaunchConfig(
        target=script,
        is_module=is_module,
        arguments=arguments,
        workers=workers,
        strategy=strategy,
        replicas_per_worker=replicas_per_worker,
        grace_seconds=grace_seconds,
    )
    check_strategy(config)
    if not dry_run:
        context.exit(run(config, verbose=verbose).exit_code)
    require_script(config)
    job_id = secrets.token_hex(8)
    directory = Path(tempfile.gettempdir(), f"tfdist-{job_id}")
    for spec in planned(config, job_id=job_id, directory=directory, agent_pid=0):
        click.echo(described(spec))


def check_strategy(config: LaunchConfig) -> None:
    """Check that the strategy is registered and runs in that many processes.

    Raises:
        ConfigError: no strategy has that name, or it needs one process and more are asked for.

    Example:
        >>> check_strategy(LaunchConfig(target="train.py", strategy="multi-worker", workers=2))
    """
    if config.strategy is None:
        return
    from tfdist.strategies import registry

    entry = registry.get(config.strategy)
    if entry.processes == "one" and config.workers > 1:
        raise ConfigError(
            f"-n is {config.workers}, but the strategy {entry.name!r} runs in one process: its replicas are the "
            f"devices of that process. For {config.workers} replicas: tfdist run --strategy {entry.name} "
            f"--replicas-per-worker {config.workers} {config.target}"
        )


def described(spec: WorkerSpec) -> str:
    """Return a worker's variables and command, as lines that a shell understands.

    Example:
        >>> print(described(WorkerSpec(index=0, argv=("python", "a b"), environment={"A": "1"}, error_file=Path("e"))))
        # worker 0
        export A=1
        python 'a b'
    """
    variables = [f"export {name}={shlex.quote(value)}" for name, value in spec.environment.items()]
    removed = [f"unset {name}" for name in spec.removed]
    return "\n".join([f"# worker {spec.index}", *variables, *removed, shlex.join(spec.argv)])
