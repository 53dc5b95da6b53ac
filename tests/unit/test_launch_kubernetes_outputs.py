"""Outputs of a job on Kubernetes, which reach the submitting machine through the log of its first pod."""

import errno
import os
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.refusals import absent, refused
from tfdist.cli.main import main
from tfdist.errors import StorageError
from tfdist.jobs.launchers.kubernetes.pod_outputs import Output, Receiver, require_writable, sent

DRY = ("--engine", "kubernetes", "-n", 2, "--image", "tfdist:cpu", "--dry-run")


def outputs_of(folder: Path) -> tuple[Output, ...]:
    return (
        Output(place=folder / "events", grows=True),
        Output(place=folder / "trace"),
        Output(place=folder / "curves", grows=True, is_folder=True),
    )


@pytest.fixture
def log(tmp_path: Path) -> bytes:
    """Return the log of a pod that has three outputs, with lines of workers between them."""
    records: list[bytes] = [b"first\n"]
    pod = tmp_path / "pod"
    pod.mkdir()
    outputs = outputs_of(tmp_path / "here")
    with sent(pod, write=records.append):
        Path(outputs[0].in_pod(0, pod)).write_bytes(b"{}\n")
        Path(outputs[1].in_pod(1, pod)).write_bytes(os.urandom(20_000))
        Path(f"{outputs[1].in_pod(1, pod)}.new").write_bytes(b"not yet")
        curves = Path(outputs[2].in_pod(2, pod), "job")
        curves.mkdir(parents=True)
        (curves / "run").write_bytes(b"\x1etfdist-output \n")
    assert max(map(len, records)) < 4096
    assert len(records) > 8  # the trace is in pieces
    return b"a line \xff\n".join([*records, b"half a line"])


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_what_a_pod_writes_comes_whole_and_its_lines_too(log: bytes, size: int, tmp_path: Path) -> None:
    said: list[str] = []
    here = tmp_path / "here"
    here.mkdir()
    (here / "events").write_bytes(b"before\n")
    receiver = Receiver(outputs_of(here), said.append)
    shown = b"".join(receiver.shown(log[place : place + size]) for place in range(0, len(log), size))
    shown += receiver.shown(b"", is_last=True)
    count = log.count(b"a line \xff\n")
    assert shown == b"first\n" + count * b"a line \xff\n" + b"half a line"
    assert (here / "events").read_bytes() == b"before\n{}\n"
    assert (here / "trace").read_bytes() == (tmp_path / "pod" / "tfdist-whole-1").read_bytes()
    assert (here / "curves" / "job" / "run").read_bytes() == b"\x1etfdist-output \n"
    assert sorted(os.listdir(here)) == ["curves", "events", "trace"]
    assert [absent(text, str(here / "trace")) for text in said] == [[]]


def test_what_grows_comes_while_the_job_runs(tmp_path: Path) -> None:
    pod, here, arrived = tmp_path / "pod", tmp_path / "here", []
    pod.mkdir()
    receiver = Receiver(outputs_of(here), print)
    events = pod / "tfdist-grows-0"
    with sent(pod, write=lambda data: arrived.append(receiver.shown(data))):
        for text in ("one\n", "two\n"):
            before = len(arrived)
            with events.open("a") as file:
                file.write(text)
            deadline = time.monotonic() + 60
            while len(arrived) == before and time.monotonic() < deadline:
                time.sleep(0.01)
            assert (here / "events").read_text().endswith(text)
    assert (here / "events").read_text() == "one\ntwo\n"
    assert set(arrived) == {b""}


@pytest.mark.parametrize(
    "wrong",
    [
        b'{"output": 9, "name": ".", "left": 0, "data": ""}',
        b'{"output": 2, "name": "../x", "left": 0, "data": "eJxLBAAAYgBi"}',
        b'{"output": 2, "name": "/x", "left": 0, "data": "eJxLBAAAYgBi"}',
        b'{"output": 2}',
        b"[]",
        b"nothing",
        b"x" * 5000,
    ],
)
def test_what_only_looks_like_an_output_is_a_line(wrong: bytes, tmp_path: Path) -> None:
    line = b"[worker 0] \x1etfdist-output " + wrong + b"\n"
    receiver = Receiver(outputs_of(tmp_path), print)
    assert receiver.shown(line) + receiver.shown(b"", is_last=True) == line
    assert os.listdir(tmp_path) == []


def test_pieces_without_the_first_ones_are_dropped(log: bytes, tmp_path: Path) -> None:
    parts = log.split(b"\x1etfdist-output ")
    missing = next(place for place, part in enumerate(parts) if b'"output": 1' in part)
    receiver = Receiver(outputs_of(tmp_path / "other"), print)
    receiver.shown(b"\x1etfdist-output ".join(parts[:missing] + parts[missing + 1 :]), is_last=True)
    assert not (tmp_path / "other" / "trace").exists()
    assert (tmp_path / "other" / "curves" / "job" / "run").exists()


def test_what_cannot_be_written_is_told(log: bytes, tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "blocked").write_text("")
    Receiver(outputs_of(tmp_path / "blocked"), said.append).shown(log, is_last=True)
    assert len(said) == 3
    assert all("cannot be written" in text for text in said)
    with refused(StorageError, path=tmp_path / "blocked" / "events") as caught:
        require_writable(outputs_of(tmp_path / "blocked"))
    assert caught.value.errno == errno.ENOTDIR


def run(*arguments: object, **variables: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["run", *map(str, arguments)], env={"KUBECONFIG": "/nowhere", **variables})
    return done.exit_code, done.output


def test_pods_have_places_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import yaml

    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("")
    given: list[Any] = ["--event-file", "e.jsonl", "--trace=t.json", "--export", "html", "--monitor"]
    code, out = run(*DRY, *given, "--export", "prometheus:9500", "train.py", "--trace", "its own")
    assert code == 0, out
    job = next(yaml.safe_load_all(out))
    words = job["spec"]["template"]["spec"]["containers"][0]["args"][4:]
    assert words == [
        *("--event-file", "/dev/shm/tfdist-grows-0", "--trace", "/dev/shm/tfdist-whole-1"),
        *("--export", "html:/dev/shm/tfdist-whole-2", "--export", "prometheus:9500"),
        *("--engine", "kubernetes", "-n", "2", "--monitor", "/etc/tfdist/script.py", "--trace", "its own"),
    ]
    assert not absent(out, "# t.json comes through", "# tfdist.html comes through")
    assert os.listdir(tmp_path) == ["train.py"]


def test_a_folder_of_mlflow_would_go_with_the_pod(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "train.py").write_text("")
    path = str(tmp_path / "train.py")
    for place in ("mlflow", "mlflow:runs"):
        code, out = run(*DRY, "--export", place, path)
        assert (code, "Name a server" in out) == (2, True), out
    assert run(*DRY, "--export", "mlflow:http://10.0.0.1:5000", path)[0] == 0
    server = {"MLFLOW_TRACKING_URI": "http://10.0.0.1:5000"}
    assert run(*DRY, "--export", "mlflow", "--pass-env", "MLFLOW_TRACKING_URI", path, **server)[0] == 0
