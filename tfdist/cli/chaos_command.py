"""``tfdist chaos``: run a job with deliberate faults, and print the outcome of each."""

import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tfdist.cli.common.command import PASSES_ARGUMENTS, Command
from tfdist.errors import ConfigError
from tfdist.jobs.plan.launch_config import server_count
from tfdist.variables import FAULTS_LOG
from tfdist.waiting import handled, wait_heeding_signals


@click.command(
    cls=Command,
    context_settings=PASSES_ARGUMENTS,
    examples={
        "tfdist chaos -- tfdist run -n 2 train.py": "a worker is killed",
        "tfdist chaos --faults kill,stop --count 5 -- tfdist run -n 2 train.py": "five faults",
        "tfdist chaos --plan faults.json -- tfdist run -n 2 train.py": "exactly these",
    },
    epilog="Exit code: 0 when the job ended with 0, 2 when the request was wrong, else that of the job.",
    page="fault-tolerance-faults",
)
@click.option("--faults", "kinds", default="kill", metavar="KIND,...", help="Kinds to choose from.")
@click.option("--count", type=int, default=1, metavar="C", help="How many faults.")
@click.option("--every", type=int, default=20, metavar="N", help="Mean steps from a start to the next fault.")
@click.option("--seed", type=int, default=0, metavar="S", help="Seed of the random faults.")
@click.option("--plan", "plan_file", type=click.Path(path_type=Path), metavar="FILE", help="Use these faults instead.")
@click.argument("job", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
@click.pass_context
def command(
    context: click.Context,
    *,
    kinds: str,
    count: int,
    every: int,
    seed: int,
    plan_file: Path | None,
    job: tuple[str, ...],
) -> None:
    """Run a job with faults on purpose, and see how it recovers.

    COMMAND is `tfdist run` with its options and your script. The job runs with your data and your model, while its
    workers are killed, stopped or hang. It gets as many --max-restarts as there are faults. A table at the end shows,
    for each fault, the time until it was detected, the time until all workers stepped again, and the repeated steps.
    Scripts with tfdist.callbacks.BackupAndRestore resume; others start from the beginning.

    Kinds of faults: kill, stop (SIGSTOP), hang, slow, exception, exit, term (SIGTERM to one worker), disk-full,
    corrupt.
    """
    from tfdist.monitor import fault_plan
    from tfdist.monitor.fault_plan import FaultPlan

    arguments = arguments_of_run(job)
    workers, servers, has_restarts = _asked_for(arguments)
    if plan_file is None:
        chosen = [kind.strip() for kind in kinds.split(",") if kind.strip()]
        plan = FaultPlan.made_up(kinds=chosen, count=count, every=every, workers=workers, servers=servers, seed=seed)
    else:
        try:
            plan = FaultPlan.of(plan_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"--plan {plan_file} cannot be read ({error}).") from error
    with tempfile.TemporaryDirectory(prefix="tfdist-chaos-") as folder:
        events, log = Path(folder, "events"), Path(folder, "faults")
        restarts = [] if has_restarts else ["--max-restarts", str(plan.restarts)]
        code = _run(
            [sys.executable, "-m", "tfdist", "run", "--event-file", str(events), *restarts, *arguments],
            {**os.environ, **plan.to_environment(), FAULTS_LOG.name: str(log)},
        )
        texts = [path.read_text(encoding="utf-8") if path.exists() else "" for path in (log, events)]
    found = fault_plan.verdicts(plan, *map(fault_plan.lines, texts))
    click.echo(f"\n{fault_plan.table(found)}")
    happened = sum(one.step is not None for one in found)
    click.echo(f"{happened} of {len(found)} faults happened; the job ended with {code}.")
    context.exit(code)


def arguments_of_run(job: Sequence[str]) -> list[str]:
    """Return the words after ``tfdist run`` in a command.

    Example:
        >>> arguments_of_run(["python", "-m", "tfdist", "run", "-n", "2", "train.py"])
        ['-n', '2', 'train.py']
    """
    for position, (word, following) in enumerate(itertools.pairwise(job)):
        if Path(word).name == "tfdist" and following == "run":
            return list(job[position + 2 :])
    raise ConfigError(
        f"the command is {' '.join(job)!r}; it must be a `tfdist run`: tfdist chaos -- tfdist run -n 2 train.py"
    )


def _asked_for(arguments: list[str]) -> tuple[int, int, bool]:
    """Return the numbers of workers and servers, and whether the command limits restarts."""
    from tfdist.cli.common.host_options import HostOptions, launcher_of, remote_of, worker_count
    from tfdist.cli.run_command import command as run

    context = run.make_context("tfdist run", list(arguments))
    servers = server_count(context.params["strategy"], parameter_servers=context.params["parameter_servers"])
    if context.params["event_file"] is not None:
        raise ConfigError("the command has --event-file, which tfdist chaos reads itself; leave it out.")
    hosts = context.params["hosts"]
    launcher = launcher_of(context.params["launcher_name"], hosts)
    remote = remote_of(launcher, HostOptions(hosts=hosts, key_file=context.params["key_file"]))
    workers = worker_count(context.params["workers"], remote, servers)
    if workers < 1:
        raise ConfigError(f"-n is {workers}; it must be an integer of at least 1.")
    return workers, servers, context.params["max_restarts"] is not None


def _run(argv: list[str], environment: dict[str, str]) -> int:
    """Run the job to its end, pass signals on, and return the exit code that a shell would report."""
    jobs: list[subprocess.Popen[bytes]] = []
    early: list[int] = []  # signals that arrived before the job was started

    def pass_on(number: int, _frame: Any) -> None:
        if number == signal.SIGINT:  # Ctrl-C on the keyboard reaches the job, too
            return
        early.extend([] if jobs else [number])
        for job in jobs:
            job.send_signal(number)

    with handled(pass_on), subprocess.Popen(argv, env=environment) as job:
        jobs.append(job)
        for number in early:
            job.send_signal(number)
        code = wait_heeding_signals(job)
    return code if code >= 0 else 128 - code
