"""Run jobs on two machines by mpirun, and look that what comes of them is what comes of a job on one host.

    python -m tests.soak.mpi [--sshd PATH] [MPIRUN ...]

The machines are those of `hosts.py`. MPIRUN are the programs to try, of Open MPI or MPICH; by default the one on PATH.
"""

import argparse
import contextlib
import json
import shutil
import tempfile
import time
from pathlib import Path

from tests.soak.hosts import SSHD_USER, Trial, with_sshd
from tests.soak.machines import LAUNCHER, Machines, machines, quoted
from tfdist.launch.remote.mpi import MPICH, found_kind


def reached_by(program: str, found: Machines, config: Path) -> str:
    """Return the command of mpirun that reaches the machines by their ssh."""
    shell = found.folder / "ssh"
    shell.write_text(f'#!/bin/sh\nexec ssh -F {config} "$@"\n')
    shell.chmod(0o755)
    if found_kind((program,), {}) == MPICH:
        here = found.address(LAUNCHER)  # MPICH tells the hosts a name of this machine, which these do not know
        return quoted(program, "-localhost", here, "-launcher", "ssh", "-launcher-exec", shell)
    return quoted(program, "--mca", "plm_rsh_agent", shell)


def places(trial: Trial, where: tuple[object, ...]) -> None:
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


def equal_to_the_bit(trial: Trial, where: tuple[object, ...]) -> str:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sshd", default="/usr/sbin/sshd")
    parser.add_argument("programs", nargs="*", default=["mpirun"])
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = stack.enter_context(machines(["a", "b"], folder, users=[SSHD_USER]))
        config = stack.enter_context(with_sshd(found, options.sshd))
        trial = Trial(found, config)
        for program in options.programs:
            begun = time.monotonic()
            where = ("--engine", "mpi", "--mpi-command", reached_by(program, found, config))
            places(trial, where)
            print(f"{program}: four workers on two hosts, each in its place", flush=True)
            resumed = equal_to_the_bit(trial, where)
            assert not trial.left()
            seconds = time.monotonic() - begun
            print(
                f"{program}: multi-worker native on one host, on two, and on two with a worker killed: equal to the "
                f"bit; {resumed} ({seconds:.0f} s in all)",
                flush=True,
            )


if __name__ == "__main__":
    main()
