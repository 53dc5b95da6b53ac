"""Errors as a new user meets them: each says what was received, what is required, and what to do."""

import json
from pathlib import Path

from tests.integration.forks import Forks

CASES = Path(__file__).with_name("cases") / "first_errors.py"

# its type, and facts of what was received, of what there is, and of what to do
TABLE = {
    "no such strategy": ("ConfigError", "'mirorred'", "'mirrored', 'multi-worker'"),
    "no such option": ("ConfigError", "'gpus': 2", "It takes devices"),
    "no GPU": ("ConfigError", "GPU:0, GPU:1", "/device:CPU:0", "use_logical_cpus(2)"),
    "too few devices": ("ConfigError", "replicas_per_worker is 2", "1 CPU device", "use_logical_cpus(2)"),
    "batch of none": ("ConfigError", "global_batch_size is 0", "at least 1"),
    "batch of text": ("ConfigTypeError", "global_batch_size is '64' (str)", "at least 1"),
    "no data": ("ConfigError", "/nothing ", "does not exist", "`tfdist data write"),
    "empty data": ("ConfigError", "/empty ", "`tfdist data write"),
    "a file for data": ("StorageError", "/file", "Not a directory", "another directory"),
    "TF_CONFIG cut short": ("ConfigError", '{"cluster": ', "JSON", "json.dumps"),
    "replicas in words": ("ConfigError", "TFDIST_REPLICAS_PER_WORKER is 'two'", "at least 1", "Unset it"),
    "workers and no index": ("ConfigError", "TFDIST_WORKERS is 'a:1,b:2'", "TFDIST_WORKER_INDEX"),
    "port taken, ring": ("ConfigError", "worker 0 ", " 127.0.0.1:", "Address already in use", "a free port"),
    "no Horovod": ("MissingDependencyError", "Horovod", "tfdist build horovod"),
    "TensorFlow before the strategy": ("ConfigError", "TensorFlow ", "a tensor", "Create the strategy first"),
    "fit in batches of text": ("ConfigTypeError", "batch_size is '16' (str)", "at least 1"),
    "batches of none": ("ConfigError", "batch_size is 0", "at least 1"),
    "port taken, multi-worker": ("ConfigError", "worker 0 ", " 127.0.0.1:", "a free port"),
}


def test_errors_say_what_was_received_what_is_required_and_what_to_do(forking: Forks, shared: Path) -> None:
    (shared / "data").mkdir()
    with forking.start(str(CASES), str(shared / "data"), cwd=shared) as process:
        out, _ = process.communicate()
    assert process.returncode == 0, process.written
    told = json.loads(out.splitlines()[-1])
    assert told.keys() == TABLE.keys()
    assert all(ours for ours, *_ in told.values()), told
    wrong = [
        f"{name}: {told[name]} lacks {fact!r}"
        for name, (kind, *facts) in TABLE.items()
        for fact in (kind, *facts)
        if (fact != told[name][1] if fact == kind else fact not in told[name][2])
    ]
    assert not wrong, "\n".join(wrong)


UNUSED = """
import tfdist

asked = {"TFDIST_STRATEGY": "mirrored", "TFDIST_REPLICAS_PER_WORKER": "2"}
used, unused = tfdist.strategies.from_environment(asked), tfdist.strategies.from_environment(asked)
with used.scope():
    pass
"""


def test_a_strategy_that_a_script_never_uses_is_named_at_its_end(forking: Forks, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(UNUSED)
    assert forking.run(str(script)) == 0, forking.output
    assert forking.output.count("MirroredStrategy of 2 replicas") == 1
    script.write_text(UNUSED + "raise ValueError('its own')")
    assert forking.run(str(script)) == 1, forking.output
    assert "its own" in forking.output
    assert "MirroredStrategy of 2 replicas" not in forking.output


APART = """
import os, sys, tfdist

os.environ |= {"TFDIST_WORKERS": "a:1,b:2", "TFDIST_WORKER_INDEX": sys.argv[1], "TFDIST_REPLICAS_PER_WORKER": "3"}
tfdist.strategies.MirroredStrategy(["CPU:0"])
del os.environ["TFDIST_WORKERS"], os.environ["TFDIST_WORKER_INDEX"]
tfdist.strategies.MirroredStrategy(["CPU:0"])
tfdist.strategies.MirroredStrategy()
"""


def test_a_strategy_of_one_process_in_a_job_of_several_is_named(forking: Forks, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(APART)
    for worker, told in (("0", 1), ("1", 0)):
        assert forking.run(str(script), worker) == 0, forking.output
        assert forking.output.count("started with 2 workers") == told
        assert forking.output.count("of 3 replicas") == 1
