"""Run jobs on machines by a real sshd on each, and check that their results are those of a job on one machine.

    python -m tests.soak.hosts [--sshd PATH] [trial ...]

The machines are namespaces (`machines.py`), so it needs root, iproute2, and OpenSSH's client and server. Debian has the
server in the package openssh-server; if that is not installed, PATH is the program from the package.
"""

import argparse
import contextlib
import json
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.soak.machines import LAUNCHER, Machines, machines, quoted
from tests.soak.trials import RESUMABLE, ROOT, SECONDS, Trial, ended, started, wait_until

SSHD_USER = "sshd:x:120:65534::/run/sshd:/usr/sbin/nologin"

CONFIG = """
Port 22
HostKey {folder}/host_{name}
AuthorizedKeysFile {folder}/user.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
StrictModes no
UsePAM no
PidFile none
"""


@contextlib.contextmanager
def with_sshd(found: Machines, sshd: str) -> Iterator[Path]:
    """Yield a configuration of ssh by which the machines are reached."""
    folder = found.folder
    for key in ("user", *(f"host_{name}" for name in found.names)):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    known = [f"{name} {(folder / f'host_{name}.pub').read_text()}" for name in found.names]
    (folder / "known_hosts").write_text("".join(known))
    config = folder / "ssh_config"
    config.write_text(f"Host *\n  IdentityFile {folder}/user\n  UserKnownHostsFile {folder}/known_hosts\n")
    with contextlib.ExitStack() as stack:
        for name in found.names:
            (folder / f"sshd_{name}").write_text(CONFIG.format(folder=folder, name=name))
            start = f"mkdir -p /run/sshd; exec {quoted(sshd, '-D', '-e', '-f', folder / f'sshd_{name}')}"
            stack.enter_context(found.service(name, start))
            found.wait_for_port(name, 22)
        yield config


class OverSsh(Trial):
    """Jobs on machines that are reached by ssh."""

    def __init__(self, found: Machines, config: Path) -> None:
        super().__init__(found.folder, found)
        self.found = found
        self._ssh = ("ssh", "-F", str(config))
        self.shell = ("--ssh-command", quoted(*self._ssh))

    @contextlib.contextmanager
    def running(self, name: str, *words: object) -> Iterator["subprocess.Popen[str]"]:
        """Run a command of tfdist on a machine, as somebody does who is logged in there."""
        command = f"cd {self.folder} && PYTHONPATH={ROOT} exec {quoted(sys.executable, '-m', 'tfdist', *words)}"
        with started(self.found.inside(LAUNCHER, [*self._ssh, name, command]), cwd=self.folder) as process:
            yield process

    def left(self) -> list[str]:
        """Return the processes of jobs that run, on whatever machine."""
        shown = subprocess.run(["ps", "-eo", "pid,args"], capture_output=True, text=True, check=True).stdout
        return [line for line in shown.splitlines() if "host_agent" in line or str(self.folder / "script") in line]

    def workers(self) -> list[str]:
        """Return those that run the script."""
        return [line for line in self.left() if "worker.py" in line]


def equal_to_the_bit(trial: OverSsh) -> None:
    """A job on two hosts has the weights of one on one host, also when a worker is killed or a host ends."""
    kill = json.dumps([{"kind": "kill", "worker": 1, "at": "step", "step": 3}])
    for options in (("multi-worker", "tensorflow"), ("multi-worker", "native"), ("sharded-data-parallel", "native")):
        strategy = ("--strategy", options[0], "--collectives", options[1], "-n", 2)
        hosts = (*strategy, "--hosts", "a,b", *trial.shell)
        local, _ = trial.trained(*strategy)
        remote, events = trial.trained(*hosts)
        assert remote == local, options
        begun = time.monotonic()
        killed, events = trial.trained(
            *hosts, "--max-restarts", 1, "--hang-seconds", 60, TFDIST_FAULTS=kill, OWN_BACKUPS="1"
        )
        assert killed == local, options
        stepping = [one for one in events if one["event"] == "stepping"][-1]
        print(
            f"{' '.join(options)}: one host, two over ssh, and two with a worker killed: equal to the bit; resumed at "
            f"step {stepping['resumed']}, {stepping['lost']} repeated, {stepping['seconds']:.2f} s after the kill "
            f"({time.monotonic() - begun:.0f} s in all)",
            flush=True,
        )


def parameter_servers(trial: OverSsh) -> None:
    """A chief, workers and a server on two hosts."""
    options = ("--strategy", "parameter-server", "-n", 2, "--parameter-servers", 1)
    variables = {"TFDIST_MAX_STALENESS": "0"}
    local, _ = trial.trained(*options, **variables)
    remote, _ = trial.trained(*options, "--hosts", "a:2,b:2", *trial.shell, **variables)
    assert local == remote
    print("parameter-server: one host and two over ssh: equal to the bit", flush=True)


def agents_join(trial: OverSsh) -> None:
    """Agents that somebody has started on two machines train to the weights of one; one with another key is none."""
    key, other = trial.folder / "job.key", trial.folder / "other.key"
    other.touch(0o600)
    other.write_text(secrets.token_hex(32))
    at = f"{trial.found.address(LAUNCHER)}:7000"
    strategy = ("--strategy", "multi-worker", "--collectives", "native", "-n", 2)
    local, _ = trial.trained(*strategy)
    kill = json.dumps([{"kind": "kill", "worker": 1, "at": "step", "step": 3}])
    where = ("--engine", "agent", "--hosts", "a,b", "--rendezvous", at, "--key-file", key)
    for more, variables in (((), {}), (("--max-restarts", 1), {"TFDIST_FAULTS": kill, "OWN_BACKUPS": "1"})):
        with contextlib.ExitStack() as stack:
            if not key.exists():  # the launcher makes it
                first = stack.enter_context(trial.started(*where, *strategy, RESUMABLE))
                wait_until(key.exists)
                first.send_signal(signal.SIGINT)
                ended(first, 130)
            agents = [
                stack.enter_context(trial.running(name, "agent", at, "--key-file", key, "--name", name))
                for name in ("a", "b")
            ]
            stranger = stack.enter_context(trial.running("c", "agent", at, "--key-file", other, "--name", "a"))
            joined, events = trial.trained(*strategy, *where, *more, **variables)
            assert joined == local
            assert [one for one in events if one["event"] == "failed"] == [] or more
            for process in agents:
                assert "the job has ended" in ended(process, 0)
            refused = ended(stranger, 1)
            assert "has another key" in refused, refused
    print("agents on two machines, also with a worker killed: equal to the bit; one with another key: refused")


def what_ends(trial: OverSsh) -> None:
    """Check that the workers end with the launcher, and with the network."""
    script = trial.folder / "script.py"
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(10_000)\n")
    for number, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        with trial.started("--verbose", "--hosts", "a:2,b:2", *trial.shell, script) as process:
            wait_until(lambda: len(trial.workers()) == 4)
            process.send_signal(number)
            process.communicate(timeout=SECONDS)
        wait_until(lambda: not trial.left())
        print(
            f"{signal.Signals(number).name} to the launcher: exit code {process.returncode}, nothing left", flush=True
        )
        assert process.returncode == code
    with trial.started("--hosts", "a,b", *trial.shell, script) as process:
        wait_until(lambda: len(trial.workers()) == 2)
        begun = time.monotonic()
        trial.found.cut("b")
        err, _ = process.communicate(timeout=SECONDS)
        seconds = time.monotonic() - begun
        assert "connection to host b" in err, err
        wait_until(lambda: not trial.left(), seconds=150)
        gone = time.monotonic() - begun
        trial.found.join("b")
    print(f"a cable pulled: told after {seconds:.0f} s, nothing left on either host after {gone:.0f} s", flush=True)
    (trial.folder / "known_hosts").write_text("")
    err = trial.run("--hosts", "a,b", *trial.shell, script, code=1)
    assert "Host key verification failed" in err, err
    print("a host whose key is not known: refused before anything is started", flush=True)


def a_machine_is_lost(trial: OverSsh) -> None:
    """The chief's agent is killed with all on its machine, and then the machine; a third one takes its place."""
    strategy = ("--strategy", "multi-worker", "--collectives", "native", "-n", 2)
    local, _ = trial.trained(*strategy)
    shared = trial.folder / "shared"
    shared.mkdir()
    result, events, gone = trial.folder / "lost", trial.folder / "events of the lost", shared / "one is gone"
    script = (RESUMABLE.with_name("losing_hosts.py"), result, trial.folder / "no backup", "tfdist", "1000")
    passed = [word for name in ("SHARED", "MACHINES") for word in ("--pass-env", name)]
    options = (*strategy, "--hosts", "a,b,c", *trial.shell, *passed, "--max-restarts", 2, "--hang-seconds", 60)
    with trial.started("--event-file", events, *options, *script, SHARED=str(shared), MACHINES="1") as process:
        wait_until(gone.exists, seconds=SECONDS)
        begun = time.monotonic()
        trial.found.end("a")
        err, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, err[-4000:]
    assert result.read_text() == local
    happened = [json.loads(line) for line in events.read_text().splitlines()]
    for stepping in [one for one in happened if one["event"] == "stepping"][1:]:
        print(
            f"a machine is lost: resumed at step {stepping['resumed']} from {stepping['source']}, {stepping['lost']} "
            f"repeated, {stepping['seconds']:.2f} s after that was seen",
            flush=True,
        )
        assert stepping["lost"] <= 1
    assert "host a was lost" in err, err
    print(f"equal to the bit, {time.monotonic() - begun:.0f} s after the machine's end", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sshd", default="/usr/sbin/sshd")
    parser.add_argument(
        "trials",
        nargs="*",
        default=["equal_to_the_bit", "parameter_servers", "agents_join", "what_ends", "a_machine_is_lost"],
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = stack.enter_context(machines(["a", "b", "c"], folder, users=[SSHD_USER]))
        trial = OverSsh(found, stack.enter_context(with_sshd(found, options.sshd)))
        for name in options.trials:
            globals()[name](trial)


if __name__ == "__main__":
    main()
