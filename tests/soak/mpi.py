"""Run jobs on two machines by mpirun, and check that their results are those of a job on one host.

    python -m tests.soak.mpi [--sshd PATH] [MPIRUN ...]

The machines are those of `hosts.py`. MPIRUN names the programs to try, of Open MPI or MPICH; by default the one on
PATH.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.soak.hosts import SSHD_USER, OverSsh, with_sshd
from tests.soak.machines import LAUNCHER, Machines, machines, quoted
from tests.soak.trials import SECONDS
from tfdist.jobs.launchers.mpi import MPICH, OPEN_MPI, command, found_kind
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.variables import JOB_KEY, RENDEZVOUS


def reached_by(program: str, found: Machines, config: Path) -> str:
    """Return the command of mpirun that reaches the machines by their ssh."""
    shell = found.folder / "ssh"
    shell.write_text(f'#!/bin/sh\nexec ssh -F {config} "$@"\n')
    shell.chmod(0o755)
    if found_kind((program,), {}) == MPICH:
        here = found.address(LAUNCHER)  # MPICH tells the hosts a name of this machine, which these do not know
        return quoted(program, "-localhost", here, "-launcher", "ssh", "-launcher-exec", shell)
    return quoted(program, "--mca", "plm_rsh_agent", shell)


def places(trial: OverSsh, where: tuple[object, ...]) -> None:
    """Four workers are on the hosts in whose places they belong."""
    script = trial.folder / "script_places.py"
    told = trial.folder / "places"
    told.mkdir()
    script.write_text(
        "import os, pathlib, socket\n"
        f"pathlib.Path({str(told)!r}, os.environ['TFDIST_WORKER_INDEX']).write_text(socket.gethostname())\n"
    )
    trial.run(*where, "--hosts", "a:2,b:2", script)
    found = [(told / str(worker)).read_text() for worker in range(4)]
    shutil.rmtree(told)
    assert found == ["a", "a", "b", "b"], found


def maps(trial: OverSsh, where: tuple[object, ...]) -> dict[int, str]:
    """The host that mpirun shows for each rank is the one on which it runs what is the agent of that host."""
    says = trial.folder / "script_says"
    says.write_text('#!/bin/sh\necho "said: $TFDIST_HOST_NAME is $(hostname)"\n')
    says.chmod(0o755)
    shell = tuple(shlex.split(str(where[-1])))
    kind = found_kind(shell, os.environ)
    shell = (*shell, "--display-map") if kind == OPEN_MPI else (*shell, "-prepend-rank")
    remote = Remote(hosts=(Host(name="a", address="a"), Host(name="b", address="b")), shell=shell, python=str(says))
    words = command(kind, remote, remote.hosts, {}, as_root=True)
    done = subprocess.run(
        trial.found.inside(LAUNCHER, [*words]),
        env={**os.environ, RENDEZVOUS.name: "", JOB_KEY.name: ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    shown: dict[int, str] = {}
    host = ""
    for line in done.stdout.splitlines():
        if found := re.search(r"Data for node: (\S+)", line):
            host = found[1]
        elif found := re.search(r"Process rank: (\d+)", line):
            shown[int(found[1])] = host
        elif found := re.match(r"\[(\d+)\] said: (\w+)", line):
            shown[int(found[1])] = found[2]
    said = dict(re.findall(r"said: (\w+) is (\w+)", done.stdout))
    assert said == {"a": "a", "b": "b"}, done.stdout
    assert shown == {0: "a", 1: "b"}, done.stdout
    return shown


def equal_to_the_bit(trial: OverSsh, where: tuple[object, ...]) -> str:
    """A job on two hosts has the weights of one on one host, also when a worker is killed at its third step."""
    kill = json.dumps([{"kind": "kill", "worker": 1, "at": "step", "step": 3}])
    strategy = ("--strategy", "multi-worker", "--collectives", "native", "-n", 2)
    local, _ = trial.trained(*strategy)
    hosts = (*strategy, *where, "--hosts", "a,b")
    remote, _ = trial.trained(*hosts)
    assert remote == local
    again = (*hosts, "--max-restarts", 1, "--hang-seconds", 60, "--pass-env", "OWN_BACKUPS")
    killed, events = trial.trained(*again, TFDIST_FAULTS=kill, OWN_BACKUPS="1")
    assert killed == local
    failed = [one for one in events if one["event"] == "failed"]
    assert [(one["cause"], one["worker"]) for one in failed] == [("signal", 1)], failed
    stepping = [one for one in events if one["event"] == "stepping"][-1]
    return f"resumed at step {stepping['resumed']}, {stepping['lost']} repeated, {stepping['seconds']:.1f} s after it"


def parameter_servers(trial: OverSsh, where: tuple[object, ...]) -> None:
    """A chief and a worker on one host, a worker and a server on the other have the weights of one host."""
    options = ("--strategy", "parameter-server", "-n", 2, "--parameter-servers", 1)
    variables = {"TFDIST_MAX_STALENESS": "0"}
    local, _ = trial.trained(*options, **variables)
    there = (*options, *where, "--hosts", "a:2,b:2", "--pass-env", *variables)
    remote, _ = trial.trained(*there, **variables)
    assert remote == local


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sshd", default="/usr/sbin/sshd")
    parser.add_argument("programs", nargs="*", default=["mpirun"])
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = stack.enter_context(machines(["a", "b"], folder, users=[SSHD_USER]))
        config = stack.enter_context(with_sshd(found, options.sshd))
        trial = OverSsh(found, config)
        for program in options.programs:
            begun = time.monotonic()
            where = ("--engine", "mpi", "--mpi-command", reached_by(program, found, config))
            places(trial, where)
            shown = maps(trial, where)
            print(f"{program}: four workers on two hosts, each in its place; hosts of ranks: {shown}", flush=True)
            resumed = equal_to_the_bit(trial, where)
            parameter_servers(trial, where)
            assert not trial.left()
            seconds = time.monotonic() - begun
            print(
                f"{program}: multi-worker native on one host, on two, and on two with a worker killed, and "
                f"parameter-server on one and on two: equal to the bit; {resumed} ({seconds:.0f} s in all)",
                flush=True,
            )


if __name__ == "__main__":
    main()
