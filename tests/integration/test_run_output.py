"""The output of `tfdist run`: every line once and whole, prefixes, bars, colour, a reader that goes away."""

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.agents import DEADLINE_SECONDS, agent, alive, environment, finished, own_lines, told, wait_until

pytestmark = pytest.mark.quick


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


NOISY = r"""
    sys.stderr.write("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
    sys.stderr.write("I0000 00:00:17.5   30103 port.cc:153] oneDNN custom operations are on. You may see\n")
    sys.stderr.write("a warning of the script's own\n")
    print("level", os.environ.get("TF_CPP_MIN_LOG_LEVEL"), flush=True)
    sys.stderr.write("the last words")
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_what_is_known_to_be_noise_is_left_out_unless_all_is_asked_for(workers, script, shared):  # type: ignore[no-untyped-def]
    env = environment(shared)
    env.pop("TF_CPP_MIN_LOG_LEVEL", None)
    own, last = "a warning of the script's own", "the last words"
    for options, level, said in (((), "1", {own, last}), (("--all-logs",), "None", {own, last, "WARNING", "I0000"})):
        with agent("-n", workers, *options, script(NOISY), shared=shared, env=env) as process:
            out, err = process.communicate(timeout=DEADLINE_SECONDS)
        assert process.returncode == 0
        assert out.decode().count(f"level {level}\n") == workers
        lines = [re.sub(r"^\[worker \d\] ", "", line) for line in err.decode().splitlines()]
        assert {line if line in (own, last) else re.split(r"[ :]", line)[0] for line in lines} == said
        assert len(lines) == workers * len(said)


def test_a_single_worker_has_a_terminal_for_its_errors_too(script, shared):  # type: ignore[no-untyped-def]
    body = "print(os.get_terminal_size(2).columns > 0, file=sys.stderr); sys.stderr.write('\\r50%\\r100%\\n')"
    text = on_a_terminal(script(NOISY + "\n    " + body), shared=shared)
    assert "absl" not in text
    assert "a warning of the script" in text
    assert re.search(r"the last words(True|False)\r\n.*100%\r\n", text, re.DOTALL)
    everything = on_a_terminal("--all-logs", script(NOISY), shared=shared)
    assert "absl" in everything


def test_a_reader_that_stands_still_does_not_stop_supervision(script, shared):  # type: ignore[no-untyped-def]
    path = script("""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        tell(f"pid {ME}", str(os.getpid()))
        while True:
            print("line " * 1000)
    """)
    with agent("-n", 2, "--grace-seconds", 0.3, path, shared=shared, stderr=subprocess.STDOUT) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        pids = [int(told(shared, f"pid {worker}")) for worker in range(2)]
        process.send_signal(signal.SIGINT)
        wait_until(lambda: not any(map(alive, pids)), "the workers are not ended")
        process.wait(timeout=DEADLINE_SECONDS)
    assert process.returncode == 130


def test_the_job_ends_when_nobody_reads_its_output(script, shared):  # type: ignore[no-untyped-def]
    path = script("while True: print('line ' * 100)")
    with agent("-n", 2, path, shared=shared, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=DEADLINE_SECONDS)
        process.stdout = None
    assert process.returncode == 141


@pytest.mark.parametrize("closed", ["<&-", "<&- >&- 2>&-"])
def test_a_worker_runs_where_standard_streams_are_closed(script, shared, closed: str) -> None:  # type: ignore[no-untyped-def]
    path = script("tell('ran', sys.stdin.read())")
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "tfdist", "run", str(path)]
    done = subprocess.run(command, env=environment(shared), stderr=subprocess.PIPE, text=True, timeout=DEADLINE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert told(shared, "ran") == ""
