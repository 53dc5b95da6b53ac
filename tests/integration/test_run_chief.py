"""`tfdist run --strategy parameter-server`: a chief that runs the script, and what happens when one of its tasks dies.

Most tests put a `tensorflow` of their own before the real one: its server listens at the port of its task, as the real
one does, and is there in a tenth of a second. One test at the end starts real tasks.
"""

import json
import os
import re
import signal
import textwrap
from pathlib import Path

import pytest

from tests.integration.agents import (
    DEADLINE_SECONDS,
    ROOT,
    agent,
    alive,
    environment,
    finished,
    own_lines,
    says,
    told,
    wait_until,
)

pytestmark = pytest.mark.quick

SERVER = """
import itertools, os, pathlib, socket, types
SHARED = pathlib.Path(os.environ["SHARED"])
listening = []

def server(cluster, job_name, task_index, protocol):
    host, port = cluster[job_name][task_index].split(":")
    listening.append(socket.create_server((host, int(port))))  # fails where somebody listens
    names = (f"{job_name} {task_index} {start}" for start in itertools.count())
    name = next(name for name in names if not (SHARED / name).exists())
    print("serves", job_name, task_index, flush=True)
    (SHARED / f".{name}").write_text(f"{os.getpid()} {port}")
    (SHARED / f".{name}").rename(SHARED / name)

distribute = types.SimpleNamespace(Server=server)
"""

# what the scripts of these tests may use besides: which start of the job this is, and their tasks
CHIEF = """
import json
STARTS = int(os.environ["TFDIST_RESTARTS"])
CLUSTER = json.loads(os.environ["TF_CONFIG"])["cluster"]
TASKS = [f"{kind} {index}" for kind in ("worker", "ps") for index in range(len(CLUSTER[kind]))]
def task(name, start=STARTS):
    wait_told(f"{name} {start}")
    return tuple(map(int, (SHARED / f"{name} {start}").read_text().split()))
def kill(name, start=STARTS):
    os.kill(task(name, start)[0], signal.SIGKILL)
def forever():
    while True:
        time.sleep(1)
tell(f"chief {STARTS}", f"{os.getpid()} 0")
for each in TASKS:
    task(each)
"""


@pytest.fixture
def chief(script, tmp_path):  # type: ignore[no-untyped-def]
    package = tmp_path / "fake" / "tensorflow"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SERVER)
    return lambda body: script(CHIEF + textwrap.dedent(body))


def job(*flags: object, workers: int = 2, servers: int = 1) -> list[object]:
    return ["--strategy", "parameter-server", "-n", workers, "--parameter-servers", servers, *flags]


def options(shared: Path) -> dict[str, object]:
    fake = shared.parent / "fake"
    return {"shared": shared, "env": environment(shared, PYTHONPATH=os.pathsep.join([str(fake), str(ROOT)]))}


def pids(shared: Path) -> dict[str, int]:
    """Every process that was started, by its task and its start."""
    kinds = ("chief", "worker", "ps")
    return {path.name: int(path.read_text().split()[0]) for path in shared.iterdir() if path.name.startswith(kinds)}


def left(shared: Path) -> list[str]:
    return [name for name, pid in pids(shared).items() if alive(pid)]


def test_the_chief_runs_the_script_and_the_tasks_serve_it(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        import tfdist
        cluster = tfdist.cluster.from_environment()
        assert cluster.addresses == tuple(CLUSTER["worker"])
        assert cluster.parameter_servers == tuple(CLUSTER["ps"])
        assert [cluster.chief] == CLUSTER["chief"]
        assert os.environ["TFDIST_STRATEGY"] == "parameter-server"
        assert "tensorflow" not in sys.modules
        print(cluster.task, cluster.num_workers, len(cluster.parameter_servers), STARTS, *sys.argv[1:])
    """)
    code, out, err = finished(*job(servers=2), path, "--epochs", 3, **options(shared))
    assert (code, err) == (0, "")
    assert own_lines(out, "chief") == ["chief 2 2 0 --epochs 3"]
    for kind in ("worker", "ps"):
        for index in range(2):
            assert own_lines(out, f"{kind} {index}") == [f"serves {kind} {index}"]
    assert len(pids(shared)) == 5
    assert left(shared) == []


def test_a_worker_that_dies_is_started_again_at_its_port(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        kill("worker 1")
        (old, before), (new, after) = task("worker 1"), task("worker 1", 1)
        print(old != new, before == after, f"127.0.0.1:{after}" == CLUSTER["worker"][1])
    """)
    code, out, err = finished(*job(), path, **options(shared))
    assert (code, own_lines(out, "chief")) == (0, ["True True True"])
    replaced, summary = err.splitlines()
    assert says(replaced, "tfdist run: ", "worker 1 ", "SIGKILL", "1 of 3 times")
    assert says(summary, "tfdist run: ", "code 0", "0 of 3 restarts", "1 worker replaced")
    assert sorted(pids(shared)) == ["chief 0", "ps 0 0", "worker 0 0", "worker 1 0", "worker 1 1"]
    assert left(shared) == []


def test_a_worker_that_is_stopped_is_replaced(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        os.kill(task("worker 1")[0], signal.SIGSTOP)
        print(task("worker 1")[1] == task("worker 1", 1)[1])
    """)
    events = shared / "events"
    flags = ("--hang-seconds", 0.3, "--event-file", events)
    code, out, err = finished(*job(*flags), path, **options(shared))
    assert (code, own_lines(out, "chief")) == (0, ["True"])
    assert says(err, "worker 1 hangs", "SIGSTOP")
    said = [json.loads(line) for line in events.read_text().splitlines()]
    assert [one["event"] for one in said] == ["started", "replaced", "ended"]
    assert said[1]["task"] == "worker 1"
    assert left(shared) == []


# the steps of a training, whose state is how many there were
STEPS = """
    from tfdist.monitor.phases import Kind
    from tfdist.monitor.process_clock import step_clock
    reporter = step_clock().reporter
    assert reporter.is_chief
    state = SHARED / "state"
    steps = int(state.read_text()) if state.exists() else 0
    if steps:
        reporter.resumed(steps, "state")
    for tick in range(30 - steps):
        step_clock().begin(Kind.TRAIN)
        if (STARTS, tick) == (1, 3):
            forever()  # without its server, which has been killed at this moment
        step_clock().end()
        reporter.done(steps + tick + 1)
        if (steps + tick) % 10 == 9:
            state.write_text(str(steps + tick + 1))
    print("steps", tick + 1)
"""


def test_a_chief_that_hangs_is_found_by_its_steps_and_what_became_of_it_is_told(chief, shared):  # type: ignore[no-untyped-def]
    events = shared / "events"
    plan = [{"kind": "hang", "task": "chief", "step": 14}, {"kind": "kill", "task": "ps 0", "step": 3, "restart": 1}]
    made = options(shared)
    made["env"] = {**made["env"], "TFDIST_FAULTS": json.dumps(plan)}  # type: ignore[dict-item]
    code, out, err = finished(*job("--hang-seconds", 0.3, "--event-file", events), chief(STEPS), **made)
    assert (code, own_lines(out, "chief")) == (0, ["steps 20"])
    stacks, first, second, third, fourth, fifth, sixth = [
        line for line in err.splitlines() if line.startswith("tfdist run: ")
    ]
    assert "processes" in stacks
    assert re.search(r"chief \(process \d+\), by faulthandler\n +MainThread\n +.*faults.py", err)
    assert says(first, "chief hangs", "in step 15")
    assert re.search(r" for \d{1,2}\.\d s; it is killed", first)  # 0.3 s, times the load of each processor
    assert says(second, "chief ", "SIGKILL", "1 of 3 times")
    assert says(third, "step 10 (state)", "4 steps")
    assert says(fourth, "ps 0 ", "SIGKILL", "2 of 3 times")
    assert "steps again" in fifth
    assert says(sixth, "code 0", "2 of 3 restarts")
    said = [json.loads(line) for line in events.read_text().splitlines()]
    names = ["started", "stepping", "stacks", "failed", "started", "stepping", "failed", "started", "stepping", "ended"]
    assert [one["event"] for one in said] == names
    hang, kill = (one for one in said if one["event"] == "failed")
    assert (hang["task"], hang["cause"], hang["tick"], hang["phase"]) == ("chief", "hang", 14, "stepping")
    assert (kill["task"], kill["cause"], kill["restarts_left"]) == ("ps 0", "signal", 1)
    assert [one["lost"] for one in said if one["event"] == "stepping"][:2] == [0, 4]
    assert left(shared) == []


def test_the_job_goes_on_without_a_worker_that_dies_too_often(chief, shared, tmp_path):  # type: ignore[no-untyped-def]
    path = chief("""
        kill("worker 0", 0)
        kill("worker 0", 1)
        wait_told("go")
        print("done with one worker")
    """)
    errors = tmp_path / "errors"
    with errors.open("wb") as file, agent(*job("--max-restarts", 1), path, stderr=file, **options(shared)) as process:
        wait_until(lambda: "continues without it" in errors.read_text(), "nothing is said")
        (shared / "go").write_text("x")
        out, _ = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 0
    assert own_lines(out.decode(), "chief") == ["done with one worker"]
    assert "1 of 1 times (--max-restarts)" in errors.read_text()


def test_without_any_worker_the_job_fails(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("kill('worker 0'); forever()")
    code, _, err = finished(*job("--max-restarts", 0, workers=1), path, **options(shared))
    assert code == 128 + signal.SIGKILL
    assert "none is left" in err
    assert "worker 0 failed first" in err
    assert left(shared) == []


@pytest.mark.parametrize(
    "then", ["forever()", "raise RuntimeError('a variable is gone')", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_when_a_server_dies_the_job_starts_again(then, chief, shared):  # type: ignore[no-untyped-def]
    path = chief(f"""
        tell(f"cluster {{STARTS}}", json.dumps(CLUSTER))
        if STARTS == 0:
            kill("ps 1")
            {then}
        print("start", STARTS)
    """)
    code, out, err = finished(*job(servers=2), path, **options(shared))
    assert (code, own_lines(out, "chief")) == (0, ["start 1"])
    again, summary = [line for line in err.splitlines() if line.startswith("tfdist run: ")]
    assert says(again, "ps 1 ", "SIGKILL", "started again", "1 of 3 times")
    assert says(summary, "code 0", "1 of 3 restarts")
    assert "failed first" not in err
    first, second = (json.loads(told(shared, f"cluster {start}")) for start in range(2))
    assert {kind: len(addresses) for kind, addresses in second.items()} == {"chief": 1, "worker": 2, "ps": 2}
    assert not {a for one in first.values() for a in one} & {a for one in second.values() for a in one}
    assert len(pids(shared)) == 10
    assert left(shared) == []


def test_a_chief_that_is_killed_runs_again(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        if STARTS < 2:
            os.kill(os.getpid(), signal.SIGKILL)
        print("start", STARTS)
    """)
    code, out, err = finished(*job("--max-restarts", 2), path, **options(shared))
    assert (code, own_lines(out, "chief")) == (0, ["start 2"])
    assert says(err, "chief ", "SIGKILL", "started again", "2 of 2 times")


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_job_that_loses_its_server_too_often_fails(restarts, chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # or the agent may be faster than the error
        kill("ps 0")
        raise RuntimeError(f"a variable is gone, start {STARTS}")
    """)
    code, _, err = finished(*job("--max-restarts", restarts), path, **options(shared))
    assert code == 128 + signal.SIGKILL
    assert f"{restarts} of {restarts} times (--max-restarts)" in err
    report = err[err.index("ps 0 failed first") :]
    assert "SIGKILL" in report
    assert says(report, "later chief: RuntimeError: ", f", start {restarts}")
    assert sorted(name for name in pids(shared) if "chief" in name) == [f"chief {i}" for i in range(restarts + 1)]
    assert left(shared) == []


def test_a_failure_of_the_chief_is_no_reason_to_start_again(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("print('start', STARTS); sys.exit(7)")
    code, out, err = finished(*job(), path, **options(shared))
    assert (code, own_lines(out, "chief")) == (7, ["start 0"])
    report = err[err.index("chief failed first") :]
    assert "exit code 7" in report
    assert "SystemExit: 7" in report
    assert "later" not in report
    assert left(shared) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_chief_whose_tasks_serve_until_it_ends(number, chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        def ending(number, frame):
            for each in TASKS:
                os.kill(task(each)[0], 0)  # fails if it has ended
            tell(f"got {number}")
            sys.exit(0)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, ending)
        tell("ready")
        forever()
    """)
    with agent(*job(), path, **options(shared)) as process:
        told(shared, "ready")
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 128 + number
    assert (shared / f"got {int(number)}").exists()
    assert signal.Signals(number).name in err.decode()
    assert "failed first" not in err.decode()
    assert left(shared) == []


def test_ctrl_c_twice_kills_at_once(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        signal.signal(signal.SIGINT, lambda number, frame: tell("interrupted"))
        tell("ready")
        forever()
    """)
    with agent(*job("--grace-seconds", 10_000), path, **options(shared)) as process:
        for name in ("ready", "interrupted"):
            told(shared, name)
            process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    assert left(shared) == []


def test_ctrl_c_while_the_job_starts_again_ends_it(chief, shared, tmp_path):  # type: ignore[no-untyped-def]
    path = chief("""
        def asked(number, frame):
            tell("asked")
            forever()
        signal.signal(signal.SIGTERM, asked)
        kill("ps 0")
        forever()
    """)
    errors, flags = tmp_path / "errors", job("--grace-seconds", 10_000)
    with errors.open("wb") as file, agent(*flags, path, stderr=file, **options(shared)) as process:
        told(shared, "asked")
        process.send_signal(signal.SIGINT)
        wait_until(lambda: "SIGINT: " in errors.read_text(), "nothing is said")
        os.kill(pids(shared)["chief 0"], signal.SIGKILL)
        process.communicate(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130
    assert sorted(pids(shared)) == ["chief 0", "ps 0 0", "worker 0 0", "worker 1 0"]


def test_a_killed_agent_leaves_nothing_of_a_later_start(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("""
        if STARTS == 0:
            kill("ps 0")
        else:
            kill("worker 0")
            task("worker 0", 2)
            tell("ready")
        forever()
    """)
    with agent(*job(), path, **options(shared)) as process:
        told(shared, "ready")
        assert sorted(left(shared)) == ["chief 1", "ps 0 1", "worker 0 2", "worker 1 1"]
        process.kill()
        process.wait(timeout=DEADLINE_SECONDS)
        wait_until(lambda: not left(shared), "processes are left")


def test_a_dry_run_shows_all_and_starts_nothing(chief, shared):  # type: ignore[no-untyped-def]
    path = chief("")
    code, out, err = finished("--dry-run", *job(), path, "an argument", **options(shared))
    assert (code, err) == (0, "")
    shown = [line for line in out.splitlines() if line.startswith("#")]
    assert shown == ["# chief", "# worker 0", "# worker 1", "# ps 0"]
    assert out.count("export TF_CONFIG=") == 4
    assert out.count("export TFDIST_RESTARTS=0") == out.count("'an argument'") == 1
    assert out.count("script_worker.py --parent 0 --task") == 3
    assert list(shared.iterdir()) == []


def test_real_tasks_listen_and_end(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        import json, socket
        cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
        def answers(address):
            host, port = address.split(":")
            try:
                socket.create_connection((host, int(port)), timeout=5).close()
            except OSError:
                return False
            return True
        for address in cluster["worker"] + cluster["ps"]:
            wait_for(lambda: answers(address))
        print("all answer")
    """)
    code, out, err = finished(*job(workers=1), path, shared=shared, env=environment(shared, TF_CPP_MIN_LOG_LEVEL="3"))
    assert (code, own_lines(out, "chief")) == (0, ["all answer"]), err
