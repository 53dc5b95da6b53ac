"""`tfdist doctor` on this machine, as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def doctor(*arguments: str, **variables: str) -> tuple[int, dict[str, dict[str, str]]]:
    command = [sys.executable, "-m", "tfdist", "doctor", "--json", *arguments]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=600)
    report = json.loads(done.stdout)
    assert report["schema"] == "tfdist.doctor/1"
    return done.returncode, {finding["check"]: finding for finding in report["findings"]}


@pytest.mark.readme("tfdist doctor")
@pytest.mark.quick
def test_each_subject_is_found_and_a_problem_is_the_exit_code() -> None:
    wrong = {"KERAS_BACKEND": "jax", "http_proxy": "http://127.0.0.1:9", "no_proxy": "", "no_grpc_proxy": ""}
    code, found = doctor("--timeout-seconds", "500", **wrong)  # a busy machine takes minutes to load TensorFlow
    assert code == 1
    assert found["keras-backend"]["level"] == "problem"
    assert found["proxies"]["level"] == "problem"
    assert found["tensorflow"]["level"] == "ok"
    assert found["tensorflow"]["seen"].startswith("2.")
    expected = {"python", "requirements", "keras", "numpy", "horovod", "gpus", "nccl", "compiler", "make", "precision"}
    expected |= {"memory", "processors", "shared-memory", "open-files", "ports", "hostname", "cluster", "clock"}
    assert expected <= found.keys()
    assert not [finding for finding in found.values() if "the check itself failed" in finding["why"]]


@pytest.mark.quick
def test_a_tensorflow_that_hangs_is_a_problem_and_no_wait(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("import time\ntime.sleep(600)\n")
    code, found = doctor("--timeout-seconds", "1", PYTHONPATH=str(tmp_path))
    assert code == 1
    assert "did not end within 1 s" in found["tensorflow"]["seen"]
