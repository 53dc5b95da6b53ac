"""Workers that are forked from the warm process find what started ones find; it is used only where it fits."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.integration.agents import alive, environment, finished, wait_until
from tests.integration.test_fork_server import LOOK, Ended
from tfdist.cli.main import main
from tfdist.errors import TfdistError
from tfdist.jobs.placement.warm_workers import warm_environment
from tfdist.jobs.plan.job_plan import WORKER_FILE
from tfdist.processes import warm_client
from tfdist.processes.surroundings import Conditions
from tfdist.processes.warm_client import Keeper, Kept, WarmProcess

pytestmark = pytest.mark.quick

# what is inherited besides
MORE = """
import resource
sys.stdout.write("\\n")
json.dump({
    "umask": os.umask(0), "nice": os.nice(0), "ignored": str(signal.getsignal(1)), "original": sys.orig_argv[1:],
    "limits": [resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)],
    "blocked": [int(n) for n in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "groups": open("/proc/self/cgroup").read(),
}, sys.stdout)
"""
WAIT = "import os, signal\nos.write(1, b'here\\n')\nsignal.pause()"


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """The variables of a user whose cache is empty."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "tmp").mkdir()
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "imported.py").write_text("")
    found = environment(tmp_path / "shared", TFDIST_CACHE_DIR=str(tmp_path / "cache"))
    return {**found, "PYTHONPATH": os.pathsep.join([found["PYTHONPATH"], str(tmp_path / "modules")])}


@pytest.fixture
def warm(environ: dict[str, str]) -> Iterator[WarmProcess]:
    """A process that has imported only what takes no time."""
    with started(environ) as process:
        yield process


@contextlib.contextmanager
def started(environ: Mapping[str, str], idle_seconds: float = 600.0) -> Iterator[WarmProcess]:
    process, is_new = warm_client.start(
        environ, warm_environment(environ), idle_seconds=idle_seconds, modules=["json", "imported", "not_there"]
    )
    assert is_new
    try:
        yield process
    finally:
        warm_client.stop(process)
        wait_until(lambda: not alive(process.pid), "it does not end")


def kept(environ: Mapping[str, str], folder: Path) -> "contextlib.closing[Keeper]":
    found = warm_client.keeper(environ, warm_environment(environ), str(folder))
    assert found is not None
    return contextlib.closing(found)


def command(folder: Path, code: str, keeper: Keeper | None = None) -> list[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    parent = f"{os.getpid()}:{keeper.pid}" if keeper else str(os.getpid())
    return [sys.executable, str(WORKER_FILE), "--parent", parent, "--script", str(script), "an argument"]


def ended(keeper: Keeper, argv: list[str], environ: Mapping[str, str], folder: Path) -> Ended:
    """Fork a worker and wait for its end."""
    (folder / "in").write_text("some input")
    with open(folder / "in") as given, open(folder / "out", "w+") as out, open(folder / "err", "w+") as err:
        worker = keeper.spawn(argv, environ, stdin=given.fileno(), stdout=out.fileno(), stderr=err.fileno())
        code = end_of(worker)
        return Ended(code, (folder / "out").read_text(), (folder / "err").read_text())


def end_of(worker: Kept) -> int:
    wait_until(lambda: worker.ended() is not None, "it does not end")
    code = worker.ended()
    assert code is not None
    worker.collect(0.0)
    return code


def test_a_worker_finds_what_a_started_one_finds(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = {**warm_environment(environ), "STRANGE": "\udcff \n"}
    there = "import os, resource, signal; os.umask(0o027); os.nice(3); signal.signal(1, signal.SIG_IGN); "
    there += (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (99, 999)); resource.setrlimit(resource.RLIMIT_CPU, (50, 60)); "
    )
    there += "signal.pthread_sigmask(signal.SIG_BLOCK, [10])"
    inherited = Conditions.here()
    changed = dataclasses.replace(
        inherited,
        umask=0o027,
        nice=inherited.nice + 3,
        ignored=(1,),
        blocked=(10,),
        limits={**inherited.limits, "7": (99, 999), "0": (50, 60)},
    )
    monkeypatch.setattr(Conditions, "here", lambda: changed)
    code = LOOK + MORE
    plain = subprocess.run(
        [sys.executable, "-c", f"{there}; os.execv({sys.executable!r}, {command(tmp_path, code)!r})"],
        env=own,
        input="some input",
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    with kept(environ, tmp_path) as keeper:
        forked = ended(keeper, command(tmp_path, code, keeper), own, tmp_path)
    assert forked.code == 0, forked.err
    ours, theirs = (list(map(json.loads, out.splitlines())) for out in (forked.out, plain.stdout))
    assert ours[0].pop("parent") == keeper.pid
    del theirs[0]["parent"], ours[1]["original"][2], theirs[1]["original"][2]
    assert ours == theirs


def test_it_is_started_once_and_again_after_a_kill(warm: WarmProcess, environ: dict[str, str]) -> None:
    same, is_new = warm_client.start(environ, warm_environment(environ), idle_seconds=1)
    assert (same.pid, is_new) == (warm.pid, False)
    os.kill(warm.pid, signal.SIGKILL)
    wait_until(lambda: not alive(warm.pid), "it does not end")
    assert list(warm_client.running(environ)) == []
    with started(environ) as other:
        assert other.path == warm.path
        assert (tmp := warm.path.parent.stat().st_mode & 0o777) == 0o700, oct(tmp)


def test_it_ends_when_nothing_is_asked(environ: dict[str, str]) -> None:
    process, _ = warm_client.start(environ, warm_environment(environ), idle_seconds=0.01, modules=[])
    wait_until(lambda: not alive(process.pid), "it does not end")


def test_it_may_wait_for_months(environ: dict[str, str]) -> None:
    with started(environ, 1e7) as process:
        assert [one.pid for one in warm_client.running(environ)] == [process.pid]


@pytest.mark.parametrize("name", ["XLA_FLAGS", "LD_LIBRARY_PATH", "PYTHONHASHSEED", "OMP_NUM_THREADS"])
def test_another_environment_is_another_process(
    warm: WarmProcess, environ: dict[str, str], name: str, tmp_path: Path
) -> None:
    other = {**warm_environment(environ), name: "/1"}
    with pytest.raises(TfdistError, match=name):
        warm_client.keeper(environ, other, str(tmp_path))
    assert warm_client.keeper({"TFDIST_CACHE_DIR": str(tmp_path / "empty")}, other, str(tmp_path)) is None
    with kept({**environ, "LR": "0.1", "TFDIST_STRATEGY": "ring"}, tmp_path) as keeper:
        assert keeper.warm == warm.pid


def test_a_relative_path_belongs_to_a_folder(warm: WarmProcess, environ: dict[str, str], tmp_path: Path) -> None:
    relative = {**environ, "PYTHONPATH": environ["PYTHONPATH"] + os.pathsep}
    with pytest.raises(TfdistError, match="working directory"):
        warm_client.keeper(environ, warm_environment(relative), str(tmp_path))


@pytest.mark.parametrize(("place", "text"), [("imported.py", "x = 1"), ("not_there.py", ""), ("a-1.dist-info", "")])
def test_what_was_imported_has_changed(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path, place: str, text: str
) -> None:
    (tmp_path / "modules" / "another.txt").write_text("no module")
    with kept(environ, tmp_path):
        pass
    (tmp_path / "modules" / place).write_text(text)
    (described,) = warm_client.running(environ)
    assert "modules" in described.refused
    with pytest.raises(TfdistError, match="modules"):
        warm_client.keeper(environ, warm_environment(environ), str(tmp_path))
    wait_until(lambda: not alive(warm.pid), "it goes on")
    with started(environ):
        pass


def test_a_script_beside_a_module_of_the_same_name_is_left_to_python(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    own = warm_environment(environ)
    for folder, name in (("namespace", "json"), ("data", "train.json"), ("bytes", "__main__.py")):
        (tmp_path / folder / name).mkdir(parents=True)
        with kept(environ, tmp_path / folder):
            pass
    for folder, name in (("file", "json.py"), ("package", "json/__init__.py"), ("missing", "not_there.py")):
        path = tmp_path / folder / name
        path.parent.mkdir(parents=True)
        path.write_text("")
        with pytest.raises(TfdistError, match=name.partition("/")[0]):
            warm_client.keeper(environ, own, str(tmp_path / folder))


def test_one_that_does_not_answer_is_named(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_client, "_REPLY_SECONDS", 0.1)
    os.kill(warm.pid, signal.SIGSTOP)
    try:
        with pytest.raises(TfdistError, match=warm.path.name):
            warm_client.keeper(environ, warm_environment(environ), str(tmp_path))
    finally:
        os.kill(warm.pid, signal.SIGCONT)
        monkeypatch.undo()


SETS = """
import os, sys
{before}
os.environ["{name}"] = "1"
print("imported" in sys.modules, os.environ["{name}"], os.environ["MINE"], sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("name", "before", "said"),
    [
        ("TF_ENABLE_ONEDNN_OPTS", "os.environ['MINE'] = '2'", "False 1 2"),
        ("LEARNING_RATE", "", "True 1 1"),
        ("TF_CONFIG", "", "True 1 1"),
        ("TF_CPP_MIN_LOG_LEVEL", "", "True 1 1"),
        ("TF_ENABLE_ONEDNN_OPTS", "open(__file__ + '.out', 'w').close()", ""),
    ],
)
def test_a_script_that_sets_what_imports_read_begins_again_unless_that_would_be_seen(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path, name: str, before: str, said: str
) -> None:
    own = {**warm_environment(environ), "MINE": "1", "TFDIST_ERROR_FILE": str(tmp_path / "error.json")}
    with kept(environ, tmp_path) as keeper:
        done = ended(keeper, command(tmp_path, SETS.format(name=name, before=before), keeper), own, tmp_path)
    assert done.out == (f"{said} ['an argument']\n" if said else ""), done.err
    assert (done.code, name in done.err) == (int(not said), said.startswith("False") or not said)


def test_jobs_go_on_without_it_and_workers_end_with_their_keeper(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    own = warm_environment(environ)
    with kept(environ, tmp_path) as keeper, kept(environ, tmp_path) as other:
        reads, writes = os.pipe()
        argv = [command(tmp_path, WAIT, one) for one in (keeper, keeper, other)]
        workers = [
            one.spawn(words, own, stdin=0, stdout=writes, stderr=2)
            for one, words in zip((keeper, keeper, other), argv, strict=True)
        ]
        seen = b""
        while seen.count(b"here") < 3:
            seen += os.read(reads, 100)
        os.kill(warm.pid, signal.SIGKILL)
        wait_until(lambda: not alive(warm.pid), "it does not end")
        os.kill(workers[0].pid, signal.SIGTERM)
        assert end_of(workers[0]) == -signal.SIGTERM
        assert [one.ended() for one in workers[1:]] == [None, None]
        assert ended(keeper, command(tmp_path, "import sys; sys.exit(7)", keeper), own, tmp_path).code == 7
        os.kill(keeper.pid, signal.SIGKILL)
        assert end_of(workers[1]) == -signal.SIGKILL
        wait_until(lambda: not alive(workers[1].pid), "it outlives its keeper")
        with pytest.raises(TfdistError):
            keeper.spawn(argv[0], own, stdin=0, stdout=1, stderr=2)
        assert workers[2].ended() is None
    workers[2].collect(0.0)
    wait_until(lambda: not alive(workers[2].pid) and not alive(other.pid), "they outlive the agent")
    os.close(reads)
    os.close(writes)


def test_a_folder_that_others_can_enter_is_not_trusted_nor_another_user(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warm.path.parent.chmod(0o755)
    assert list(warm_client.running(environ)) == []
    assert warm_client.keeper(environ, warm_environment(environ), str(tmp_path)) is None
    warm.path.parent.chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setattr("tfdist.processes.warm_server.user_of", lambda connection: os.geteuid() + 1)
        assert list(warm_client.running(environ)) == []
    assert [one.pid for one in warm_client.running(environ)] == [warm.pid]


JOB = """
import os, sys, signal
me, start = int(os.environ["TFDIST_WORKER_INDEX"]), int(os.environ["TFDIST_RESTARTS"])
os.write(1, f"worker {me} start {start} {'imported' in sys.modules}\\n".encode())
if start == 0 and me == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if start == 0:
    signal.pause()
"""


def test_a_job_of_three_workers_is_forked_from_it_and_starts_again(
    warm: WarmProcess, environ: dict[str, str], tmp_path: Path
) -> None:
    script = tmp_path / "script.py"
    script.write_text(JOB)
    for options, is_forked in (((), True), (("--no-warm",), False)):
        code, out, err = finished(
            *options, "-n", 3, "--max-restarts", 1, script, shared=tmp_path / "shared", env=environ, cwd=tmp_path
        )
        assert code == 0, err
        assert (f"warm process {warm.pid}" in err) is is_forked
        lines = [f"[worker {me}] worker {me} start {start} {is_forked}" for me in range(3) for start in range(2)]
        assert {line for line in lines if "start 1" in line} <= set(out.splitlines()) <= set(lines)


def test_the_command_tells_what_runs_and_ends_it(warm: WarmProcess, environ: dict[str, str]) -> None:
    def told(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, ["warm", *words], env={**dict.fromkeys(os.environ), **environ})
        return done.exit_code, done.output

    code, said = told("--status")
    assert (code, str(warm.pid) in said) == (0, True)
    assert told("--idle", "soon")[0] == 2
    assert told("--status", "--stop")[0] == 2
    code, said = told("--stop")
    assert (code, str(warm.pid) in said) == (0, True)
    wait_until(lambda: not alive(warm.pid), "it does not end")
    assert told("--status")[0] == 1
