"""The script that tries GPUs, with programs that stand in for Docker, kubectl and Slurm."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CARD = "NVIDIA A100, 550.54, 81920 MiB, 8.0"
DOCTOR = {
    "tfdist": "0.2.0",
    "findings": [
        {"check": "gpus", "level": "ok", "seen": "TensorFlow can use 2"},
        {"check": "nccl", "level": "ok", "seen": "2.27.7"},
        {"check": "tensorflow", "level": "ok", "seen": "2.21.0"},
    ],
}
TRAINED = "worker 0 | test accuracy        0.9640\ntfdist run: what the job is bound by\n  verdict    computing\n"
# what stand-ins write: for commands that have a text, and for others
DOCKER = {"doctor": f"a line before\n{json.dumps(DOCTOR)}", "compose": "worker-0-1 | " + TRAINED, "": TRAINED}
Try = Callable[..., tuple[int, str, list[str]]]


@pytest.fixture
def tries(tmp_path: Path) -> Try:
    """Run the script; return its exit code, what it prints, and what was called."""

    def run(
        *arguments: str,
        cards: int = 2,
        fails: str = "no such word",
        says: Mapping[str, Mapping[str, str]] | None = None,
    ) -> tuple[int, str, list[str]]:
        folder, log = tmp_path / "bin", tmp_path / "log"
        folder.mkdir(exist_ok=True)
        said = {"nvidia-smi": {"": "\n".join([CARD] * cards)}, "docker": DOCKER, **(says or {})}
        for program, texts in said.items():
            cases = "".join(
                f"  *'{word}'*) cat <<'END'\n{text}\nEND\n  ;;\n" for word, text in texts.items() if word or text
            )
            (folder / program).write_text(
                f'#!/bin/sh\necho {program} "$@" >> {log}\n'
                f'case "$*" in *\'{fails}\'*) echo it is broken; exit 3;; esac\ncase "$*" in\n{cases}esac\n'
            )
            (folder / program).chmod(0o755)
        done = subprocess.run(
            [sys.executable, str(ROOT / "docker" / "try_gpus.py"), *arguments],
            env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
        )
        assert not done.stderr, done.stderr
        return done.returncode, done.stdout, log.read_text().splitlines() if log.exists() else []

    return run


def rows(report: str) -> dict[str, list[str]]:
    """The cells of each check, by its name."""
    lines = [line.strip("| ").split(" | ") for line in report.splitlines() if line.startswith("| ")]
    return {name: cells for name, *cells in lines[1:]}


def test_docker_all_holds(tries: Try) -> None:
    code, report, called = tries("docker", "--image", "registry/tfdist:gpu")
    found = rows(report)
    assert code == 0, report
    assert len(found) == 5
    assert {cells[0] for cells in found.values()} == {"yes"}
    assert "TensorFlow can use 2" in found["tfdist doctor"][1]
    assert found["mirrored, all GPUs"][1] == "test accuracy 0.964; computing"
    assert report.count(CARD) == 2
    runs = [line for line in called if line.startswith("docker run")]
    assert len(runs) == 4
    assert all("--gpus all" in line and "registry/tfdist:gpu" in line for line in runs)
    composed = [line for line in called if "compose" in line]
    assert [next(word for word in ("up", "wait", "logs", "down") if f" {word}" in line) for line in composed] == [
        *("up", "wait", "logs", "down")
    ]


def test_what_does_not_hold_is_shown_with_its_output(tries: Try) -> None:
    code, report, called = tries("docker", fails="--strategy ring")
    found = rows(report)
    assert code == 1
    assert [name for name, cells in found.items() if cells[0] != "yes"] == ["ring over NCCL"]
    assert "exit code 3" in report
    assert "it is broken" in report
    code, report, called = tries("docker", fails=" wait ")
    assert code == 1
    assert " down" in called[-1], "what was started is ended"


def test_one_gpu_leaves_out_what_needs_two(tries: Try) -> None:
    code, report, called = tries("docker", cards=1)
    assert code == 0
    assert [name for name, cells in rows(report).items() if cells[0] == "-"] == [
        "multi-worker, a GPU each",
        "compose.gpu.yaml, two containers",
    ]
    assert not any("compose" in line for line in called)


def test_a_doctor_without_gpus_and_a_bad_training_do_not_hold(tries: Try) -> None:
    none = {**DOCTOR, "findings": [{"check": "gpus", "level": "note", "seen": "none; there is no driver"}]}
    code, report, _ = tries("docker", says={"docker": {"doctor": json.dumps(none), "": "test accuracy 0.1"}})
    found = rows(report)
    assert code == 1
    assert found["tfdist doctor"][:2] == ["**no**", "none; there is no driver"]
    assert found["ring over NCCL"][:2] == ["**no**", "test accuracy 0.100"]


def test_kubernetes_cleans_up_whatever_happens(tries: Try) -> None:
    for fails, expected in (("no such word", 0), ("wait", 1), ("create", 1)):
        code, report, called = tries(
            "kubernetes", says={"kubectl": {"logs": TRAINED}}, fails=fails if expected else "-x-"
        )
        assert code == expected, report
        assert "delete namespace tfdist-try-" in called[-1]


def test_slurm_waits_and_reads_its_output(tries: Try, tmp_path: Path) -> None:
    code, report, called = tries("slurm", says={"sbatch": {"": ""}})
    assert code == 1, "nothing was written"
    assert rows(report)["train.sbatch, two nodes"][1] == "test accuracy 0.000"
    assert "--wait" in called[-1]
    assert called[-1].endswith("docker/slurm/train.sbatch")


@pytest.mark.parametrize("where", ["host", "docker", "kubernetes", "slurm"])
def test_a_dry_run_runs_nothing(where: str, tries: Try) -> None:
    code, report, called = tries(where, "--dry-run")
    assert code == 0
    assert rows(report)
    assert not [line for line in called if "run" in line or "apply" in line]
