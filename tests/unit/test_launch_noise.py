"""Known noise, and messages that must never be taken for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfdist.jobs.output import tf_log_filter
from tfdist.jobs.output.tf_log_filter import Filter, has_nvidia_device, known_noise

# as TensorFlow 2.21 and 2.16 write them
NOISE = [
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
    "I0000 00:00:17.5   30103 port.cc:153] oneDNN custom operations are on. You may see",
    "I0000 00:00:17.5   30103 cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available "
    "CPU instructions in performance-critical operations.",
    "To enable the following instructions: AVX2 AVX512F FMA, in other operations, rebuild TensorFlow with the "
    "appropriate compiler flags.",
    "2026-11-22 19:10:00.1: I tensorflow/core/util/port.cc:113] oneDNN custom operations are on. You may see",
    "2026-11-22 19:10:00.1: E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:485] Unable to register cuFFT "
    "factory: Attempting to register factory for plugin cuFFT when one has already been registered",
    "W0000 00:00:17.5   19500 local_rendezvous.cc:412] Local rendezvous is aborting with status: ABORTED: "
    "Cleanup -5796398258570585516",
    "2026-11-22 19:10:00.1: W tensorflow/core/framework/local_rendezvous.cc:404] Local rendezvous is aborting with "
    "status: OUT_OF_RANGE: End of sequence",
    "E0000 00:00:17.5     948 node_def_util.cc:682] NodeDef mentions attribute use_unbounded_threadpool which is not "
    "in the op definition: Op<name=MapDataset; signature=input_dataset:variant, other_arguments: -> handle:variant;",
    "2026-11-22 19:10:00.1: W tensorflow/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
]
NOISE_WITHOUT_A_GPU = [
    "I0000 00:00:17.5   30103 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.",
    "2026-11-22 19:10:00.1: I external/tsl/cuda/cudart_stub.cc:32] Could not find cuda drivers on your machine, "
    "GPU will not be used.",
    "E0000 00:00:17.5   30103 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed call to "
    "cuInit: UNKNOWN ERROR (303)",
]
NEWS = [
    "",
    "Epoch 1/10",
    "oneDNN custom operations are on.",
    "I0000 00:00:1.5   30103 cudart_stub.cc:31] something else",
    "E0000 00:00:1.5   30103 cuda_platform.cc:52] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device",
    "W0000 00:00:1.5   19500 local_rendezvous.cc:412] Local rendezvous is aborting with status: UNAVAILABLE: failed to",
    "ValueError: TF-TRT Warning: Could not find TensorRT in the model",
    "Traceback (most recent call last):",
    "E0000 00:00:17.5     948 node_def_util.cc:682] NodeDef mentions attribute other which is not in the op definition",
    "/job:worker/replica:0/task:1",
    "The tasks have crashed. Check the task logs for an earlier error",
    "F0000 00:00:1.5   30103 env.cc:84] Check failed: port.cc:153] oneDNN",
    "2026-11-22 19:10:00.1: W tensorflow/core/kernels/data/cache_dataset_ops.cc:1] The calling iterator did not",
]


@pytest.mark.parametrize("line", NOISE)
def test_noise_is_known_whatever_the_machine(line: str) -> None:
    assert all(known_noise(has_gpu=has_gpu).search(line.encode()) for has_gpu in (True, False))


@pytest.mark.parametrize("line", NOISE_WITHOUT_A_GPU)
def test_a_missing_driver_is_news_where_there_is_a_gpu(line: str) -> None:
    assert known_noise(has_gpu=False).search(line.encode())
    assert not known_noise(has_gpu=True).search(line.encode())


@pytest.mark.parametrize("line", NEWS)
def test_what_is_not_known_is_shown(line: str) -> None:
    assert not any(known_noise(has_gpu=has_gpu).search(line.encode()) for has_gpu in (True, False))


# of a worker that has ended while the other went on
LEFT = [
    [
        "E0000 00:00:17.5   10010 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE: "
        "Error reported from /job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):",
        "/job:worker/replica:0/task:1",
        "/job:worker/replica:0/task:2",
        "The tasks have crashed. Check the task logs for an earlier error, or scheduler events (e.g. preemption, "
        "eviction) to debug further. [type.googleapis.com/tensorflow.CoordinationServiceError='\"']",
    ],
    [
        "E0000 00:00:17.5   14564 base_collective_executor.cc:252] BaseCollectiveExecutor::StartAbort UNAVAILABLE: "
        "Failed to send RPC to coordination service. Either the leader task was preempted/died/restarted",
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling "
        "/tensorflow.CoordinationService/Heartbeat:",
        ':UNKNOWN:Error received from peer  {grpc_message:"failed to connect to all addresses", grpc_status:14}',
    ],
]


@pytest.mark.parametrize("left", LEFT)
def test_a_message_of_several_lines_is_left_out_whole_and_nothing_else(left: list[str]) -> None:
    noise, news = known_noise(has_gpu=False), [b"news", *(line.encode() for line in left[1:])]
    lines = [*(line.encode() for line in left), *news]
    assert Filter().shown(lines, noise) == news
    one_by_one = Filter()
    assert [line for each in lines for line in one_by_one.shown([each], noise)] == news


WRITES = r"""
import os, sys
from tfdist.jobs import hide_noise
hide_noise()
hide_noise()
def write(text):
    os.write(2, text.encode())
write("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n")
write("I0000 00:00:17.5   30103 port.cc:153] oneDNN custom opera"); write("tions are on. You may see\nnews ä\n")
write("\r10%"); write("\r100%"); write("\nI am no noise\n\n")
print("level", os.environ["TF_CPP_MIN_LOG_LEVEL"], file=sys.stderr)
write("I0000 00:00:17.5   30103 port.cc:153] oneDNN custom operations")
"""


def test_a_process_without_a_launcher_leaves_noise_out_by_a_call() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFDIST_", "TF_CPP"))}
    command = [sys.executable, "-c", WRITES]
    done = subprocess.run(command, env=kept, capture_output=True, timeout=200, check=True)
    cut_off = "I0000 00:00:17.5   30103 port.cc:153] oneDNN custom operations"
    news = ["news ä", "\r10%\r100%", "I am no noise", "", "level 1", cut_off]
    assert done.stderr.decode().split("\n") == news
    everything = {**kept, "TFDIST_ALL_LOGS": "1", "TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run(command, env=everything, capture_output=True, timeout=200, check=True)
    assert done.stderr.startswith(b"WARNING: All log messages")


def test_who_writes_to_a_reader_that_is_gone_is_not_held_up() -> None:
    reads, writes = os.pipe()
    gone, original = os.pipe()
    os.close(gone)
    try:
        os.write(writes, b"a line\n")
        tf_log_filter._filter(reads, original, known_noise(has_gpu=False))
        with pytest.raises(BrokenPipeError):  # and no pipe that fills up
            os.write(writes, b"another line\n")
    finally:
        os.close(writes)
        os.close(original)


def test_a_device_is_found_by_its_vendor(tmp_path: Path) -> None:
    for name, vendor in (("a", "0x8086\n"), ("b", "0x10de\n")):
        assert not has_nvidia_device(str(tmp_path))
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor)
    assert has_nvidia_device(str(tmp_path))
