"""Errors as a new user meets them: each says what was received, what is required, and what to do."""

import json
import subprocess
import sys
from pathlib import Path

from tests.integration.agents import environment

CASES = Path(__file__).with_name("cases") / "first_errors.py"

# what was received, what is required or present, what to do
TABLE = {
    "no such strategy": ("'mirorred'", "must be one of 'mirrored', 'multi-worker'", "Choose one of these names"),
    "no such option": ("'gpus': 2", "It takes devices", "leave the others out"),
    "no GPU": ("GPU:0, GPU:1", "this process has /device:CPU:0", "use_logical_cpus(2)"),
    "too few devices": ("replicas_per_worker is 2", "this process has 1 CPU device", "Ask for fewer"),
    "batch of none": ("global_batch_size is 0", "an integer of at least 1", "Pass the examples of a step"),
    "batch of text": ("global_batch_size is '64' (str)", "an integer of at least 1", "Pass the examples of a step"),
    "no data": ("nothing has no file", "a directory that `tfdist data write", "Pass a directory"),
    "empty data": ("empty has no file", "a directory that `tfdist data write", "Pass a directory"),
    "a file for data": ("file", "Not a directory", "choose another directory"),
    "TF_CONFIG cut short": ('{"cluster": ', "it is not JSON", "Write it with json.dumps"),
    "replicas in words": ("TFDIST_REPLICAS_PER_WORKER is 'two'", "an integer of at least 1", "Unset it"),
    "workers and no index": ("TFDIST_WORKERS is 'a:1,b:2'", "nothing tells which", "Set TFDIST_WORKER_INDEX"),
    "port taken, ring": ("worker 0 cannot listen at 127.0.0.1:", "Address already in use", "a free port"),
    "no Horovod": (
        "Horovod is not installed",
        "RingStrategy and horovod collectives are Horovod's",
        "tfdist build horovod",
    ),
    "TensorFlow before the strategy": ("has started in this process before", "a tensor", "Create the strategy first"),
    "port taken, multi-worker": ("worker 0 cannot listen at 127.0.0.1:", "Another process has the port", "a free port"),
}


def test_errors_say_what_was_received_what_is_required_and_what_to_do(shared: Path) -> None:
    (shared / "data").mkdir()
    done = subprocess.run(
        [sys.executable, CASES, shared / "data"],
        env=environment(shared), cwd=shared, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told.keys() == TABLE.keys()
    assert all(phrase for phrases in TABLE.values() for phrase in phrases)
    wrong = [f"{name}: {kind}: {text}" for name, (ours, kind, text) in told.items() if not ours]
    wrong += [
        f"{name}: {phrase!r} is not in {told[name][2]!r}"
        for name, phrases in TABLE.items()
        for phrase in phrases
        if phrase not in told[name][2]
    ]
    assert not wrong, "\n".join(wrong)
