"""The surroundings of a script under `tfdist run`: plain Python's, and its place in the cluster; and refusals."""

import re
import subprocess
import sys

import pytest

from tests.integration.agents import environment, finished, own_lines

pytestmark = pytest.mark.quick


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
        [sys.executable, *target, "a", "-m"], capture_output=True, text=True, check=True, timeout=200, **options
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


def test_a_worker_that_has_lost_another_says_so_without_a_traceback(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        from tfdist.errors import WorkerLostError
        try:
            raise ConnectionResetError("a socket")
        except ConnectionResetError as error:
            raise WorkerLostError("worker 0 cannot go on: worker 1 is gone") from error
    """)
    code, _, err = finished(path, shared=shared)
    assert code == 1
    assert "WorkerLostError: worker 0 cannot" in err
    assert "Traceback" not in err
    assert "socket" not in err


def test_a_dry_run_shows_all_and_starts_nothing(script, shared):  # type: ignore[no-untyped-def]
    path = script("tell('ran')")
    code, out, _ = finished("--dry-run", "--strategy", "multi-worker", "-n", 2, path, "an argument", shared=shared)
    assert code == 0
    assert list(shared.iterdir()) == []
    for shown in ("# worker 0", "# worker 1", "export TFDIST_WORKER_INDEX=1", "export TFDIST_STRATEGY=multi-worker"):
        assert shown in out
    assert out.count("export TF_CONFIG=") == out.count("'an argument'") == 2
    second = out[out.index("# worker 1") :]
    done = subprocess.run(["sh", "-c", second], env=environment(shared), timeout=200, check=True, capture_output=True)
    assert done.stdout == b""
    assert (shared / "ran").exists()


@pytest.mark.thorough
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
        (
            ["--strategy", "ring", "--parameter-servers", "1", "script.py"],
            "the strategy is 'ring'; only parameter-server",
        ),
        (["--parameter-servers", "1", "script.py"], "no strategy is chosen; only parameter-server"),
        (["-n", "2", "--min-workers", "3", "script.py"], "min-workers. is 3"),
        (["-n", "2", "--max-workers", "1", "script.py"], "max-workers. is 1"),
        (["--strategy", "mirrored", "--max-workers", "2", "script.py"], "max-workers. is 2"),
        (["--strategy", "parameter-server", "--max-workers", "2", "script.py"], "cannot be changed"),
        (["--hang-seconds", "0", "script.py"], "hang-seconds. is 0"),
        (["--strategy", "parameter-server", "--parameter-servers", "0", "script.py"], "parameter-servers. is 0"),
        (["--strategy", "parameter-server", "--max-restarts", "-1", "script.py"], "max-restarts. is -1"),
        (["--strategy", "parameter-server", "-n", "0", "script.py"], "from 1"),
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


AGENT = "import runpy, tfdist.jobs.agent.run_job; runpy.run_module('tfdist', run_name='__main__')"


def test_the_agent_loads_no_framework(shared):  # type: ignore[no-untyped-def]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", AGENT, "run", "--help"],
        env=environment(shared), capture_output=True, text=True, timeout=200, check=True,
    )  # fmt: skip
    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "tfdist.jobs.agent.run_job" in modules
    heavy = {"tensorflow", "keras", "numpy", "rich", "psutil", "multiprocessing", "asyncio"}
    assert {module.split(".")[0] for module in modules} & heavy == set()
    for taught in ("--dry-run", "--shares", "Exit code", "tfdist docs run"):
        assert taught in done.stdout
