"""`tfdist run` with real processes: failures, signals, output, and that nothing is left behind.

No test waits for a fault by sleeping: scripts and tests tell each other what has happened through files.
"""

import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 60
pytestmark = [pytest.mark.timeout(120), pytest.mark.quick]

# what every script may use: who it is, and how to tell and to wait
PRELUDE = """
import os, pathlib, signal, subprocess, sys, time
ME = int(os.environ["TFDIST_WORKER_INDEX"])
SHARED = pathlib.Path(os.environ["SHARED"])
def tell(name, text="x"):
    temporary = SHARED / f".{name}"
    temporary.write_text(text)
    temporary.rename(SHARED / name)
def wait_for(test):
    deadline = time.monotonic() + 50
    while not test():
        if time.monotonic() > deadline:
            sys.exit("nobody told")
        time.sleep(0.01)
def wait_told(name):
    wait_for((SHARED / name).exists)
"""


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder for what scripts and tests tell each other."""
    (tmp_path / "shared").mkdir()
    (tmp_path / "tmp").mkdir()
    return tmp_path / "shared"


@pytest.fixture
def script(tmp_path: Path, shared: Path) -> Callable[[str], Path]:
    def write(body: str, name: str = "script.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(PRELUDE + textwrap.dedent(body), encoding="utf-8")
        return path

    return write


def environment(shared: Path, **more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("TFDIST_", "NO_COLOR")) and k != "TF_CONFIG"}
    return {**kept, "PYTHONPATH": str(ROOT), "SHARED": str(shared), "TMPDIR": str(shared.parent / "tmp"), **more}


@contextmanager
def agent(*arguments: object, shared: Path, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the agent; whatever happens in the block, it is gone afterwards, and no temporary file is left."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment(shared), **options}
    process = subprocess.Popen(
        [sys.executable, "-m", "tfdist", "run", *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        # a test run in the background of a shell ignores SIGINT, and would hand that on
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=DEADLINE_SECONDS)
    wait_until(lambda: not list((shared.parent / "tmp").iterdir()), "temporary files are left")


def finished(*arguments: object, shared: Path, **options: object) -> tuple[int, str, str]:
    """Run the agent to its end; return exit code, standard output and standard error."""
    with agent(*arguments, shared=shared, **options) as process:
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
        return process.returncode, (out or b"").decode(), (err or b"").decode()


def wait_until(test: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not test():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def told(shared: Path, name: str) -> str:
    wait_until((shared / name).exists, f"nobody told {name}")
    return (shared / name).read_text()


def own_lines(text: str, worker: int) -> list[str]:
    prefix = f"[worker {worker}] "
    return [line.removeprefix(prefix) for line in text.splitlines() if line.startswith(prefix)]


def test_workers_know_who_they_are(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        import json, tfdist
        cluster = tfdist.cluster.from_environment()
        config = json.loads(os.environ["TF_CONFIG"])
        assert config["cluster"]["worker"] == list(cluster.addresses) == os.environ["TFDIST_WORKERS"].split(",")
        assert config["task"] == {"type": "worker", "index": ME}
        print(cluster.source, cluster.worker_index, cluster.num_workers, cluster.local_index, cluster.local_workers)
        print(os.environ["TFDIST_STRATEGY"], os.environ["TFDIST_REPLICAS_PER_WORKER"], cluster.job_id, *sys.argv[1:])
        assert "tensorflow" not in sys.modules
    """)
    flags = ["--strategy", "multi-worker", "--replicas-per-worker", 3, "-n", 2]
    code, out, err = finished(*flags, path, "--epochs", 3, "-n", 5, "--help", "--", "-m", shared=shared)
    assert (code, err) == (0, "")
    first, second = own_lines(out, 0), own_lines(out, 1)
    assert [first[0], second[0]] == ["tfdist run 0 2 0 2", "tfdist run 1 2 1 2"]
    assert first[1] == second[1]
    assert re.fullmatch(r"multi-worker 3 [0-9a-f]{16} --epochs 3 -n 5 --help -- -m", first[1])


def test_a_single_worker_has_no_cluster_and_no_prefix(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        print("TF_CONFIG" in os.environ, len(os.environ["TFDIST_WORKERS"].split(",")))
        print("no end", end="")
    """)
    outer = environment(
        shared, TF_CONFIG='{"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 1}}'
    )
    assert finished(path, shared=shared, env=outer) == (0, "False 1\nno end", "")


def test_the_first_failure_by_time_is_the_root_cause(script, shared):  # type: ignore[no-untyped-def]
    # worker 1 fails first, but its process stays until worker 0, which fails because of it, has ended
    path = script("""
        import atexit
        if ME == 1:
            tell("pid", str(os.getpid()))
            atexit.register(wait_told, "other one ended")
            raise ValueError("the root cause")
        wait_for(pathlib.Path(os.environ["TFDIST_ERROR_FILE"]).with_name("worker-1.json").exists)
        atexit.register(tell, "other one ended")
        raise RuntimeError("collective failed")
    """)
    code, _, err = finished("-n", 2, path, shared=shared)
    assert code == 1
    report = err[err.index("worker 1 of 2 failed first") :]
    assert "exit code 1" in report
    assert "ValueError: the root cause" in report
    assert "later worker 0: RuntimeError: collective failed" in report
    assert f'File "{path}"' in report
    assert "worker.py" not in report


def test_a_failed_worker_that_does_not_end_ends_the_job(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        import threading
        if ME == 1:
            threading.Thread(target=threading.Event().wait).start()
            raise ValueError("and a thread keeps the process")
        threading.Event().wait()
    """)
    code, _, err = finished("-n", 2, "--grace-seconds", 0.5, path, shared=shared)
    assert code == 1
    assert "worker 1 of 2 failed first" in err
    assert "ValueError: and a thread keeps the process" in err


def test_a_killed_worker_is_the_root_cause(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        def broken(number, frame):
            raise RuntimeError("collective failed")
        signal.signal(signal.SIGTERM, broken)
        tell(f"ready {ME}", str(os.getpid()))
        while True:
            time.sleep(1)
    """)
    with agent("-n", 2, path, shared=shared) as process:
        told(shared, "ready 0")
        os.kill(int(told(shared, "ready 1")), signal.SIGKILL)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    report = err.decode()
    assert process.returncode == 128 + signal.SIGKILL
    assert "worker 1 of 2 failed first" in report
    assert "killed by SIGKILL (signal 9)" in report
    assert "memory" in report
    assert "later worker 0: RuntimeError: collective failed" in report


@pytest.mark.parametrize(
    ("ending", "code", "shown"),
    [
        ("sys.exit(7)", 7, "SystemExit: 7"),
        ("sys.exit('a reason')", 1, "SystemExit: a reason"),
        ("os._exit(9)", 9, "exit code 9"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "SIGSEGV"),
        ("this is no Python", 1, "SyntaxError"),
    ],
)
def test_the_exit_code_is_kept(ending, code, shown, script, shared):  # type: ignore[no-untyped-def]
    path = script(ending if "no Python" in ending else f"if ME == 1: {ending}")
    received, _, err = finished("-n", 2, path, shared=shared)
    assert received == code
    assert "failed first" in err
    assert shown in err[err.index("failed first") :]


def test_a_worker_that_ends_well_early_is_no_failure(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        if ME == 0:
            tell("pid", str(os.getpid()))
            sys.exit(0)
        wait_told("ended")
        print("still here")
    """)
    with agent("-n", 2, path, shared=shared) as process:
        pid = int(told(shared, "pid"))
        wait_until(lambda: not alive(pid), "worker 0 does not end")
        (shared / "ended").write_text("x")
        out, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert (process.returncode, out.decode(), err.decode()) == (0, "[worker 1] still here\n", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("workers", [1, 2])
def test_signals_are_passed_on(number, workers, script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        def ending(number, frame):
            tell(f"got {number} {ME}")
            sys.exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, ending)
        tell(f"ready {ME}")
        while True:
            time.sleep(1)
    """)
    with agent("-n", workers, path, shared=shared) as process:
        for worker in range(workers):
            told(shared, f"ready {worker}")
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + number
    assert all((shared / f"got {int(number)} {worker}").exists() for worker in range(workers))
    assert signal.Signals(number).name in err.decode()
    assert "failed first" not in err.decode()


def test_ctrl_c_again_kills_at_once(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, lambda number, frame: tell(f"interrupted {ME}"))
        tell(f"ready {ME}")
        while True:
            time.sleep(1)
    """)
    with agent("-n", 2, "--grace-seconds", 10_000, path, shared=shared) as process:
        for name in ("ready", "interrupted"):
            for worker in range(2):
                told(shared, f"{name} {worker}")
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130


def test_an_ignored_hangup_stays_ignored(script, shared):  # type: ignore[no-untyped-def]
    path = script("tell('ready'); wait_told('go'); print('survived')")
    command = [sys.executable, "-m", "tfdist", "run", str(path)]
    quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdout": subprocess.PIPE}
    with subprocess.Popen(["nohup", *command], env=environment(shared), **quiet) as process:
        try:
            told(shared, "ready")
            process.send_signal(signal.SIGHUP)
            (shared / "go").write_text("x")
            out, _ = process.communicate(timeout=DEADLINE_SECONDS)
        finally:
            process.kill()
    assert (process.returncode, out) == (0, b"survived\n")


def test_a_worker_that_ignores_sigterm_is_killed(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        tell(f"pid {ME}", str(os.getpid()))
        wait_told("pid 0")
        if ME == 1:
            sys.exit(5)
        while True:
            time.sleep(1)
    """)
    code, _, err = finished("-n", 2, "--grace-seconds", 0.3, path, shared=shared)
    assert code == 5
    assert "killing 1 worker" in err
    assert not alive(int(told(shared, "pid 0")))


CHILDREN = """
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"
    def start(name, **options):
        process = subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, **options)
        process.stdout.readline()
        tell(name, str(process.pid))
    start(f"child {ME}")
    start(f"session {ME}", start_new_session=True)
    start(f"bare {ME}", env={})
"""
CHILD_NAMES = [f"{kind} {worker}" for kind in ("child", "session", "bare") for worker in range(2)]


@pytest.mark.parametrize("ending", ["if ME == 1: sys.exit(3)", "if ME == 1: sys.exit(0)"])
def test_children_of_workers_are_ended(ending, script, shared):  # type: ignore[no-untyped-def]
    path = script(
        textwrap.dedent(CHILDREN) + f"tell(f'all {{ME}}'); wait_told('all 0'); wait_told('all 1')\n{ending}\n"
    )
    code, _, _ = finished("-n", 2, "--grace-seconds", 0.3, path, shared=shared)
    assert code == (3 if "3" in ending else 0)
    assert [name for name in CHILD_NAMES if alive(int(told(shared, name)))] == []


def test_a_killed_agent_leaves_nothing(script, shared):  # type: ignore[no-untyped-def]
    path = script(textwrap.dedent(CHILDREN) + "tell(f'ready {ME}', str(os.getpid()))\nwhile True: time.sleep(1)\n")
    with agent("-n", 2, path, shared=shared) as process:
        pids = [int(told(shared, name)) for name in ("ready 0", "ready 1", *CHILD_NAMES)]
        process.kill()
        process.wait(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not any(map(alive, pids)), "processes are left")


def test_unicode_and_spaces(script, shared):  # type: ignore[no-untyped-def]
    path = script("print('größe 日本語 🙂', sys.argv[1])", name="Ordner ü 日本/das Skript ñ.py")
    code, out, _ = finished("-n", 2, path, "ein Wört", shared=shared)
    assert code == 0
    assert own_lines(out, 0) == own_lines(out, 1) == ["größe 日本語 🙂 ein Wört"]


def test_bytes_that_are_no_text_pass_through(script, shared):  # type: ignore[no-untyped-def]
    path = script(r"sys.stdout.buffer.write(b'\xff\xfe\x80 end\n')")
    with agent("-n", 2, path, shared=shared) as process:
        out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert sorted(out.splitlines()) == [b"[worker 0] \xff\xfe\x80 end", b"[worker 1] \xff\xfe\x80 end"]


def test_a_last_line_without_end_is_a_line(script, shared):  # type: ignore[no-untyped-def]
    path = script("print('first'); print('last', ME, end='')")
    _, out, _ = finished("-n", 2, path, shared=shared)
    assert out.endswith("\n")
    assert [own_lines(out, worker) for worker in range(2)] == [["first", "last 0"], ["first", "last 1"]]


def test_no_line_is_lost_or_torn(script, shared):  # type: ignore[no-untyped-def]
    count = 100_000
    path = script(f"""
        out = open(1, "w", buffering=4096, closefd=False)
        for i in range({count}):
            out.write(f"line {{i}} of {{ME}} " + "ü" * (i % 50) + "\\n")
        out.flush()
        print("to standard error", file=sys.stderr)
    """)
    code, out, err = finished("-n", 2, path, shared=shared)
    assert code == 0
    for worker in range(2):
        expected = [f"line {i} of {worker} " + "ü" * (i % 50) for i in range(count)]
        assert own_lines(out, worker) == expected
    assert out.count("\n") == 2 * count
    assert sorted(err.splitlines()) == ["[worker 0] to standard error", "[worker 1] to standard error"]


def test_a_bar_without_a_terminal_is_its_last_state(script, shared):  # type: ignore[no-untyped-def]
    path = script(r"""
        for i in range(0, 101, 10):
            print("\b" * 20 + "\r" + f"{i}%", end="", flush=True)
        print()
        print("after")
    """)
    _, out, _ = finished("-n", 2, path, shared=shared)
    assert own_lines(out, 0) == own_lines(out, 1) == ["100%", "after"]


def on_a_terminal(*arguments: object, shared: Path, **variables: str) -> str:
    """Run the agent with a terminal as its output; return what the terminal received."""
    master, slave = pty.openpty()
    received = bytearray()
    try:
        env = environment(shared, TERM="xterm-256color", **variables)
        with agent(*arguments, shared=shared, stdout=slave, stderr=slave, env=env) as process:
            os.close(slave)
            while True:
                try:
                    data = os.read(master, 65536)
                except OSError:  # nobody has the other end any more
                    break
                received += data
                if not data:
                    break
            process.wait(timeout=DEADLINE_SECONDS)
    finally:
        os.close(master)
    return received.decode()


BAR = r"""
    for i in range(3):
        print(f"\r{i} of 3 {ME}", end="", flush=True)
        tell(f"{i} {ME}")
        wait_told(f"{i} {1 - ME}")
        time.sleep(0.05)
    print(f"\rdone {ME}   ", flush=True)
"""


def test_on_a_terminal_the_chiefs_bar_moves(script, shared):  # type: ignore[no-untyped-def]
    text = on_a_terminal("-n", 2, script(BAR), shared=shared)
    assert "\x1b[36m[worker 0]\x1b[0m" in text
    assert "\x1b[35m[worker 1]\x1b[0m done 1" in text
    assert re.search(r"\r\x1b\[K[^\n]*worker 0[^\n]* [012] of 3 0", text)
    assert "of 3 1" not in text
    assert "done 0" in text


def test_no_color_is_respected(script, shared):  # type: ignore[no-untyped-def]
    text = on_a_terminal("-n", 2, script(BAR), shared=shared, NO_COLOR="1")
    assert "[worker 0] " in text
    assert not re.search(r"\x1b\[[0-9;]*m", text)


def test_a_single_worker_has_the_terminal(script, shared):  # type: ignore[no-untyped-def]
    text = on_a_terminal(script("print(sys.stdout.isatty(), sys.stderr.isatty())"), shared=shared)
    assert text == "True True\r\n"


def test_the_job_ends_when_nobody_reads_its_output(script, shared):  # type: ignore[no-untyped-def]
    path = script("while True: print('line ' * 100)")
    with agent("-n", 2, path, shared=shared, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=DEADLINE_SECONDS)
        process.stdout = None
    assert process.returncode == 141


def test_nothing_is_written_where_it_runs(script, shared, tmp_path):  # type: ignore[no-untyped-def]
    path, folder = script("print(os.getcwd())"), tmp_path / "read only"
    folder.mkdir()
    folder.chmod(0o555)
    code, out, _ = finished("-n", 2, path, shared=shared, cwd=folder)
    assert code == 0
    assert own_lines(out, 0) == [str(folder)]
    assert list(folder.iterdir()) == []


REPORT = """
import json, os, pickle, sys
class Thing: pass
main = sys.modules["__main__"]
names = ("__name__", "__file__", "__package__", "__spec__", "__cached__", "__doc__")
print(json.dumps([{name: str(globals()[name]) for name in names}, sorted(vars(main)), sys.argv, sys.path[0]]))
print(type(__loader__).__name__, __loader__.name, __loader__.path, globals() is vars(main))
print(type(pickle.loads(pickle.dumps(Thing()))).__module__)
"""


@pytest.mark.parametrize("how", ["plain", "link", "module", "relative"])
def test_the_script_finds_what_plain_python_gives(how, shared, tmp_path):  # type: ignore[no-untyped-def]
    package = tmp_path / "folder" / "package"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tool.py").write_text(f'"""Its docstring."""\n{REPORT}')
    (tmp_path / "link.py").symlink_to(package / "tool.py")
    target = {
        "plain": [str(package / "tool.py")],
        "link": [str(tmp_path / "link.py")],
        "module": ["-m", "package.tool"],
        "relative": ["package/tool.py"],
    }[how]
    options = {"cwd": tmp_path / "folder", "env": environment(shared)}
    plain = subprocess.run(
        [sys.executable, *target, "a", "-m"], capture_output=True, text=True, check=True, timeout=60, **options
    )
    if how == "module":  # runpy keeps two names of its own in the module that `python -m` has too, in another way
        assert (
            finished(*target, "a", "-m", shared=shared, **options)[1].splitlines()[1:] == plain.stdout.splitlines()[1:]
        )
    else:
        assert finished(*target, "a", "-m", shared=shared, **options) == (0, plain.stdout, "")


def test_a_script_can_spawn(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        import multiprocessing
        def work(x):
            return 2 * x
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                print(pool.map(work, [1, 2]))
                pool.close()
                pool.join()
    """)
    assert finished(path, shared=shared) == (0, "[2, 4]\n", "")


def test_a_fork_of_the_worker_is_not_the_worker(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        pid = os.fork()
        if pid == 0:
            raise ValueError("in the fork")
        os.waitpid(pid, 0)
        assert not os.path.exists(os.environ["TFDIST_ERROR_FILE"])
        print("fine")
    """)
    code, out, err = finished("-n", 2, path, shared=shared)
    assert code == 0
    assert own_lines(out, 0) == ["fine"]
    assert "ValueError: in the fork" in err
    assert "failed first" not in err


def test_a_dry_run_shows_all_and_starts_nothing(script, shared):  # type: ignore[no-untyped-def]
    path = script("tell('ran')")
    code, out, _ = finished("--dry-run", "--strategy", "multi-worker", "-n", 2, path, "an argument", shared=shared)
    assert code == 0
    assert list(shared.iterdir()) == []
    for shown in ("# worker 0", "# worker 1", "export TFDIST_WORKER_INDEX=1", "export TFDIST_STRATEGY=multi-worker"):
        assert shown in out
    assert out.count("export TF_CONFIG=") == out.count("'an argument'") == 2
    second = out[out.index("# worker 1") :]
    done = subprocess.run(["sh", "-c", second], env=environment(shared), timeout=60, check=True, capture_output=True)
    assert done.stdout == b""
    assert (shared / "ran").exists()


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["missing.py"], "no such file"),
        (["."], "a directory"),
        (["-n", "0", "script.py"], "at least 1|from 1"),
        (["-n", "1.5", "script.py"], "not a valid integer"),
        (["--grace-seconds", "nan", "script.py"], "finite"),
        (["--strategy", "nothing", "script.py"], "'mirrored', 'multi-worker'"),
        (["--strategy", "mirrored", "-n", "2", "script.py"], "--replicas-per-worker 2"),
        (["--replicas-per-worker", "0", "script.py"], "at least 1"),
        ([], "Missing argument"),
    ],
)
def test_wrong_requests_start_nothing(arguments, shown, script, shared):  # type: ignore[no-untyped-def]
    path = script("tell('ran')")
    for extra in ([], ["--dry-run"]):
        code, out, err = finished(*extra, *arguments, shared=shared, cwd=path.parent)
        assert (code, out) == (2, "")
        assert re.search(shown, err), err
        assert "Traceback" not in err
    assert list(shared.iterdir()) == []


def test_the_agent_loads_no_framework(shared):  # type: ignore[no-untyped-def]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "tfdist", "run", "--help"],
        env=environment(shared), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "tfdist.launch.agent" in modules
    heavy = {"tensorflow", "keras", "numpy", "rich", "psutil", "multiprocessing", "asyncio"}
    assert {module.split(".")[0] for module in modules} & heavy == set()
    for taught in ("TFDIST_WORKER_INDEX", "TF_CONFIG", "Exit code", "--dry-run", "SIGKILL"):
        assert taught in done.stdout
