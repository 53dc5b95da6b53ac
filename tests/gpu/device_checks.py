"""Checks of tfdist on this host's GPUs: `make gpu-checks`. Without GPUs they run on two logical CPUs.

Several cards are taken whole, a single one is split in two. What runs in one process shares it, so a check that needs
settings of its own runs `device_worker.py`. Numbers are compared with plain Keras on one device, without TF32, which
would round to ten bits.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import tfdist
from tests.gpu import device_worker as work
from tfdist.collectives import gpu_cards
from tfdist.compression import TopK
from tfdist.errors import ConfigError
from tfdist.optimizers import DistributedOptimizer
from tfdist.training.epoch import Batch
from tfdist.training.global_batches import Input

WORKER = Path(work.__file__)
SLACK = 1e-4  # seconds by which the clock of a GPU is off
SECONDS = 600.0  # the longest check, kernels that CUDA compiles included


@pytest.fixture(scope="session")
def devices() -> list[str]:
    return work.two_devices()


@pytest.fixture(scope="session")
def alone(devices: list[str]) -> work.Trained:
    return work.train(None)


def child(*command: str) -> str:
    """Run a command that has to succeed; return what it wrote."""
    environment = {**os.environ, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}  # processes share a card
    ended = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stdout[-4000:]
    return ended.stdout


def gap(found: work.Trained, wanted: work.Trained) -> float:
    """The largest difference of weights and losses, relative to those above 1."""
    pairs = zip(found.values, wanted.values, strict=True)
    return max(float(np.max(np.abs(one - other) / np.maximum(1, np.abs(other)))) for one, other in pairs)


def test_the_doctor_sees_what_tensorflow_sees() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tfdist", "doctor", "--json"], capture_output=True, text=True, timeout=SECONDS
    )
    found = {one["check"]: one for one in json.loads(ended.stdout)["findings"]}
    gpus = len(tf.config.list_physical_devices("GPU"))
    assert found["gpus"]["level"] in ("ok", "note")
    assert not gpus or str(gpus) in found["gpus"]["seen"]


def test_replicas_with_cards_of_their_own_ask_for_nccl(devices: list[str]) -> None:
    hint = gpu_cards.communication(gpu_cards.of_devices(devices)).hint
    cards = len(tf.config.list_physical_devices("GPU"))
    assert hint == (gpu_cards.BETWEEN_CPUS if not cards else gpu_cards.RING if cards == 1 else gpu_cards.NCCL)


def test_two_replicas_are_one_device(devices: list[str], alone: work.Trained) -> None:
    assert gap(work.train(tfdist.strategies.MirroredStrategy(devices)), alone) < 1e-4


def test_steps_that_overflow_float16_are_skipped_by_all(devices: list[str]) -> None:
    wanted = work.train(None, policy="mixed_float16", adapt=work.scaled)
    found = work.train(tfdist.strategies.MirroredStrategy(devices), policy="mixed_float16", adapt=work.scaled)
    assert found.scale == wanted.scale
    assert found.scale < work.FIRST_SCALE, "a gradient was infinite"
    assert gap(found, wanted) < 5e-2


def test_a_codec_that_keeps_all_changes_nothing(devices: list[str], alone: work.Trained) -> None:
    found = work.train(
        tfdist.strategies.MirroredStrategy(devices),
        adapt=lambda optimizer: DistributedOptimizer(optimizer, compression=TopK(density=1.0)),
    )
    assert gap(found, alone) < 1e-4


def test_a_pipeline_and_a_program_of_xla_are_one_device(devices: list[str]) -> None:
    wanted = work.train(None, network=work.tower)
    piped = work.train(tfdist.strategies.PipelineStrategy(stages=2, microbatches=4), network=work.tower)
    compiled = work.train(tfdist.strategies.MirroredStrategy(devices), network=work.tower, jit_compile=True)
    assert max(gap(piped, wanted), gap(compiled, wanted)) < 1e-4


def test_native_collectives_are_for_processors(devices: list[str]) -> None:
    if "GPU" not in devices[0]:
        assert tfdist.strategies.MirroredStrategy(devices, collectives="native").num_replicas_in_sync == 2
        return
    with pytest.raises(ConfigError):
        tfdist.strategies.MirroredStrategy(devices, collectives="native")


def test_two_processes_are_one_device(alone: work.Trained, tmp_path: Path) -> None:
    """On one card they share it; on several, each has its own (`--gpus-per-worker`)."""
    several = len(tf.config.list_physical_devices("GPU")) > 1
    options = ["--gpus-per-worker", "1"] if several else []
    command = [sys.executable, "-m", "tfdist", "run", "--strategy", "multi-worker", "-n", "2", *options]
    child(*command, str(WORKER), "from_environment", str(tmp_path / "found.npz"))
    assert gap(work.Trained.read(tmp_path / "found.npz"), alone) < 1e-4


def test_batches_wait_in_the_memory_of_their_replicas(devices: list[str]) -> None:
    data = tf.data.Dataset.from_tensor_slices(np.zeros([32, 4], np.float32)).batch(8)
    strategy = tfdist.strategies.MirroredStrategy(devices)
    given = Input(data, batches=4, share=strategy.share, workers=strategy.workers, ahead=strategy._ahead)
    batch = next(iter(given))
    assert isinstance(batch, Batch)
    on_gpus = "GPU" in devices[0]
    at = [tensor.device.rpartition("/device:")[2] for tensor in batch.tensors]
    assert at == (["CPU:0", "GPU:0", "CPU:0", "GPU:1"] if on_gpus else ["CPU:0"] * 4), "numbers stay on the host"
    given.end()


def test_the_parts_of_steps_are_those_of_their_device(tmp_path: Path) -> None:
    child(sys.executable, str(WORKER), "recorded", str(tmp_path / "found.npz"))
    with np.load(tmp_path / "found.npz") as file:
        began, ended, rows = (file[name] for name in ("began", "ended", "rows"))
    assert len(rows) == 2 * work.STEPS
    assert (rows[:, 0] >= began - SLACK).all()
    assert (np.diff(rows[:, [0, 1, 2, 4]], axis=1) > 0).all(), "begin, loss, gradients, end"
    assert (np.diff(rows[:, 3:5], axis=1) >= 0).all()
    assert (rows[1:, 0] >= rows[:-1, 4] - SLACK).all(), "steps follow one another"
    assert (rows[:, 4] <= ended + SLACK).all()


def test_reproducible_runs_are_equal_to_the_bit(tmp_path: Path) -> None:
    found: Sequence[Path] = [tmp_path / "first.npz", tmp_path / "second.npz"]
    for path in found:
        child(sys.executable, str(WORKER), "reproducible", str(path))
    assert gap(*map(work.Trained.read, found)) == 0.0
