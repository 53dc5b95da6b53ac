"""``tfdist run``: parse, call `tfdist.launch`, print."""

import secrets
import shlex
import tempfile
from pathlib import Path

import click

from tfdist.launch import LaunchConfig, WorkerSpec, planned, require_script, run
from tfdist.launch.choice import DEFAULT_RESTARTS, DEFAULT_SERVERS, check_strategy, server_count

HELP = """Start SCRIPT on N local workers; end all of them when one fails, or start them again.

SCRIPT runs as `python SCRIPT ARGUMENTS` would, once per worker; with parameter servers once, on the chief. What
follows its name is its own: tfdist reads none of it.

\b
Usage:
  tfdist run train.py --epochs 3            one worker, all devices of this machine
  tfdist run -n 2 train.py --epochs 3       two workers on this machine
  tfdist run --strategy multi-worker -n 2 --replicas-per-worker 2 train.py
                                            2 x 2 replicas (without GPUs: logical CPU devices)
  tfdist run --strategy mirrored --replicas-per-worker 2 train.py
                                            one process, two replicas
  tfdist run --strategy parameter-server -n 2 --parameter-servers 1 train.py
                                            a chief that runs the script, two workers and a server that serve it
  tfdist run -n 2 -m package.module         a module, as `python -m` does
  tfdist run -n 2 --max-restarts 3 train.py
                                            start the workers again, at most three times, when one fails or hangs
  tfdist run -n 2 --min-workers 1 --max-workers 3 train.py
                                            the number of workers may change: tfdist resize JOB N
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
  TFDIST_PROGRESS_FILE        a page of memory where it says how far it is (tfdist.callbacks and strategies do)
  TFDIST_RESTARTS             with --max-restarts: how often the workers have been started again: 0, 1, ...
  TFDIST_MEMORY_DIR           with it: a folder in memory that outlives the workers, and not the job
  TFDIST_ENVIRONMENT_FILE     with it: where it notes the variables that it has set, for a faster restart
  TF_CONFIG                   with two or more workers, as plain TensorFlow reads it
  PYTHONUNBUFFERED            1, so that its output appears at once
  no_grpc_proxy               with 127.0.0.1, where a proxy is set: TensorFlow would send the workers there

\b
Parameter servers: the chief runs SCRIPT; workers and servers run no code of yours and serve it until it ends. All get
TF_CONFIG with their task (chief, worker I or ps J) and TFDIST_JOB_ID, and no TFDIST_WORKERS. The chief gets also
TFDIST_STRATEGY, TFDIST_ERROR_FILE, TFDIST_PROGRESS_FILE, TFDIST_ENVIRONMENT_FILE and
  TFDIST_RESTARTS             how often the job has been started again: 0, 1, ...
  TFDIST_TASKS_FILE           which process is which task, for faults on purpose (tfdist chaos)

\b
Output: with two or more workers every line begins with [worker I], or with [chief] or [ps J]; progress bars of the
chief move on a terminal, and elsewhere the last state of a bar is one line. NO_COLOR is respected. One worker has the
terminal to itself.

\b
When a worker fails, the others get SIGTERM and, after the grace period, SIGKILL, with all their children. The report
names the worker that failed FIRST: the others fail after it, because they wait for it. A worker that ends with code 0
before the others is no failure. SIGINT, SIGTERM and SIGHUP end the job within the same grace period: workers that
train with tfdist.callbacks.BackupAndRestore stop before the same step, save and end; others get the signal. Ctrl-C
again kills at once.

\b
With --max-restarts K (a script that keeps no backup begins anew; one with tfdist.callbacks.BackupAndRestore goes on):
  a worker fails       all are killed and started again, with other ports, at most K times; the same failure three times
                       in a row at the same step ends the job: it is not the machine
  the workers hang     no worker goes on: not for five times the usual step, 2 s at least (--hang-seconds), or a minute
                       while they wait for data, or --stall-seconds in whatever else they say they do (compiling,
                       saving, callbacks); or a process is stopped (SIGSTOP) for --hang-seconds. They are killed, and it
                       counts as a failure. Steps of a script that does not train through tfdist are not seen
  it goes fast         from the second start on, workers are forked from a process that has imported TensorFlow
  --standby            faster still: a second set of workers runs the script up to the first step that it trains, and
                       waits there to take over. It needs their memory again (on GPUs: memory growth), and a script
                       that may run up to fit beside the job: one that deletes its results first may not
Each failure and each recovery is one line on standard error, and the last line is a summary; --event-file has the same
as JSON.

\b
With --min-workers A or --max-workers B, for scripts that train with tfdist.callbacks.BackupAndRestore:
  tfdist resize JOB N  all stop before the same step and save; N workers go on. JOB is printed at the start
  SIGUSR1, SIGUSR2     to `tfdist run`: one worker more, one fewer
  SIGTERM to a worker  (its machine is taken away) likewise, and the job goes on without it; with fewer than A left
                       it ends with 143, after saving

\b
With parameter servers:
  a worker dies        it is started again at its port, at most --max-restarts times over all workers; then the job
                       goes on without it, and fails when no worker is left
  a server dies        its variables are gone: everything is ended, and the job starts again with new ports and
                       TFDIST_RESTARTS one higher, at most --max-restarts times; then it fails. A script that keeps
                       checkpoints goes on from the last one
  the chief is killed  likewise; or hangs: it does not go on with a step, as above. Its waiting for workers does not
                       count, whose time it measures itself
  the chief fails      the job fails with its exit code; an error that follows a server's death is that server's
  the chief ends       with 0: workers and servers are ended, and the job is done
  one is stopped       (SIGSTOP, for --hang-seconds): it is killed, and the rest follows
  a signal             is passed on to the chief; workers and servers are ended when it has ended

\b
Exit code:
  0        every worker, or the chief, ended with 0
  2        the request was wrong (nothing was started)
  other    that of the process that failed first; 128 + N if signal N killed it
  1        the workers hang, and may not be started again
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
@click.option(
    "--parameter-servers",
    type=int,
    metavar="M",
    help=f"Number of parameter servers, with --strategy parameter-server.  [default: {DEFAULT_SERVERS}]",
)
@click.option(
    "--max-restarts",
    type=int,
    metavar="K",
    help="How often the workers are started again when one fails or they hang.  "
    f"[default: 0; with --strategy parameter-server {DEFAULT_RESTARTS}]",
)
@click.option("--min-workers", type=int, metavar="A", help="The job goes on with so many.  [default: N]")
@click.option("--max-workers", type=int, metavar="B", help="The job can be asked for so many.  [default: N]")
@click.option(
    "--hang-seconds",
    type=float,
    default=2.0,
    show_default=True,
    metavar="S",
    help="Workers whose step takes longer, and five times as long as usual, hang.",
)
@click.option(
    "--stall-seconds",
    type=float,
    default=1800.0,
    show_default=True,
    metavar="S",
    help="Workers that do anything else for longer hang.",
)
@click.option("--standby", is_flag=True, help="Keep a second set of workers ready to take over; with --max-restarts.")
@click.option(
    "--event-file",
    type=click.Path(dir_okay=False),
    metavar="PATH",
    help="Append what happens (failures, recoveries) as lines of JSON; docs/run.md describes them.",
)
@click.option("--dry-run", is_flag=True, help="Print the variables and command of each process; start nothing.")
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
    parameter_servers: int | None,
    max_restarts: int | None,
    min_workers: int | None,
    max_workers: int | None,
    hang_seconds: float,
    stall_seconds: float,
    standby: bool,
    event_file: str | None,
    dry_run: bool,
    verbose: bool,
    is_module: bool,
    script: str,
    arguments: tuple[str, ...],
) -> None:
    """Start a script on local workers."""
    servers = server_count(strategy, parameter_servers=parameter_servers)
    config = LaunchConfig(
        target=script,
        is_module=is_module,
        arguments=arguments,
        workers=workers,
        strategy=strategy,
        replicas_per_worker=replicas_per_worker,
        grace_seconds=grace_seconds,
        parameter_servers=servers,
        max_restarts=DEFAULT_RESTARTS if servers and max_restarts is None else max_restarts or 0,
        min_workers=min_workers,
        max_workers=max_workers,
        hang_seconds=hang_seconds,
        stall_seconds=stall_seconds,
        standby=standby,
        event_file=event_file,
    )
    check_strategy(config)
    if not dry_run:
        context.exit(run(config, verbose=verbose).exit_code)
    require_script(config)
    job_id = secrets.token_hex(8)
    directory = Path(tempfile.gettempdir(), f"tfdist-{job_id}")
    for spec in planned(config, job_id=job_id, directory=directory, agent_pid=0):
        click.echo(described(spec))


def described(spec: WorkerSpec) -> str:
    """Return the variables and the command of a process, as lines that a shell understands.

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
    return "\n".join([f"# {spec.task}", *variables, *removed, shlex.join(spec.argv)])
