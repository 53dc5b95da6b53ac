"""Known TensorFlow log noise, and the filter that removes it.

Native code writes some lines before any log level applies, and at the level of information in every process. Only the
lines below are dropped; unknown messages are always shown. Complaints about a missing GPU are dropped only on machines
without one.
"""

import atexit
import contextlib
import functools
import glob
import os
import re
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from tfdist.variables import ALL_LOGS

_STAMP = rb"^(?:[IWEF]\d{4} [\d:.]+ +\d+|\d{4}-\d\d-\d\d [\d:.]+: [IWEF]) \S*?"

_ALWAYS = (
    rb"^WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR$",
    _STAMP + rb"port\.cc:\d+\] oneDNN custom operations are on\.",
    _STAMP + rb"cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized to use available CPU instructions",
    rb"^To enable the following instructions: [\w .,]+, in other operations, rebuild TensorFlow with",
    _STAMP + rb"\S+\.cc:\d+\] Unable to register cu(?:DNN|FFT|BLAS) factory",
    _STAMP + rb"computation_placer\.cc:\d+\] computation placer already registered",
    _STAMP + rb"local_rendezvous\.cc:\d+\] Local rendezvous is aborting with status: OUT_OF_RANGE: End of sequence",
    _STAMP + rb"local_rendezvous\.cc:\d+\] Local rendezvous is aborting with status: ABORTED: Cleanup",
    rb"TF-TRT Warning: Could not find TensorRT$",
    # under deterministic operations, of each parallel `map` that keeps a state: TensorFlow makes it a sequential one
    _STAMP + rb"node_def_util\.cc:\d+\] NodeDef mentions attribute use_unbounded_threadpool which is not in the op def",
)
# About a worker that has ended while others continue, even successfully: the launcher names a failed worker, and an
# operation that needs the worker raises.
_LEFT = re.compile(
    _STAMP + rb"base_collective_executor\.cc:\d+\] BaseCollectiveExecutor::StartAbort UNAVAILABLE: "
    rb"(?:Error reported from /job:\w+/task:\d+: The following tasks are unhealthy \(stopped sending heartbeats\):$"
    rb"|Failed to send RPC to coordination service\. )"
)
_LEFT_GOES_ON = re.compile(
    rb"^(?:/job:\w+/replica:\d+/task:\d+$|The tasks have crashed\. Check the task logs"
    rb"|:UNKNOWN:Error received from peer"
    rb"|Additional GRPC error information from remote target \S+ while calling /tensorflow\.CoordinationService/)"
)
_WITHOUT_A_GPU = (
    _STAMP + rb"\S+\.cc:\d+\] Could not find cuda drivers on your machine, GPU will not be used\.",
    _STAMP + rb"cuda_\w+\.cc:\d+\] failed call to cuInit: .*UNKNOWN ERROR \(303\)",
)
_NVIDIA = "0x10de"
_CHUNK = 1 << 16
_STANDARD_ERROR = 2
_END_SECONDS = 2.0
# How noise begins. What begins otherwise, such as the frames of a bar, is passed on before its line is complete.
_MAY_BE_NOISE = re.compile(rb"[IWEF]\d|\d{4}-|WARNING: |To enable|TF-TRT|[IWEF\dT]?$")


def has_nvidia_device(devices: str = "/sys/bus/pci/devices") -> bool:
    """True if this machine has a device of NVIDIA, with or without drivers."""
    for path in glob.glob(f"{devices}/*/vendor"):
        try:
            if Path(path).read_text().strip() == _NVIDIA:
                return True
        except OSError:
            continue
    return False


def known_noise(*, has_gpu: bool) -> re.Pattern[bytes]:
    """Return the pattern of lines on standard error that are known noise."""
    patterns = _ALWAYS if has_gpu else (*_ALWAYS, *_WITHOUT_A_GPU)
    return re.compile(b"|".join(b"(?:%b)" % pattern for pattern in patterns))


class Filter:
    """A filter that removes noise from the lines of one stream, also messages of several lines."""

    def __init__(self) -> None:
        self._goes_on = False  # the last line was left out as part of a message that may have more

    def shown(self, lines: Iterable[bytes], noise: re.Pattern[bytes]) -> list[bytes]:
        found = []
        for line in lines:
            self._goes_on = bool(_LEFT.search(line) or (self._goes_on and _LEFT_GOES_ON.search(line)))
            if not self._goes_on and not noise.search(line):
                found.append(line)
        return found


def variables(environ: Mapping[str, str], *, all_logs: bool) -> dict[str, str]:
    """Return the variables that silence native code below warnings; none if the user has set the level."""
    return {} if all_logs or "TF_CPP_MIN_LOG_LEVEL" in environ else {"TF_CPP_MIN_LOG_LEVEL": "1"}


@functools.cache
def hide_noise() -> None:
    """Hide, from now on, known noise that TensorFlow writes to standard error at every start.

    Call it before TensorFlow is imported, at the beginning of a notebook. Lines that are not known noise are written as
    they come, and TFDIST_ALL_LOGS=1 shows all lines. Workers of `tfdist run` do not need this call. A second call does
    nothing.

    Example:
        >>> import tfdist.jobs
        >>> tfdist.jobs.hide_noise()      # doctest: +SKIP
        >>> import keras                    # doctest: +SKIP
    """
    if ALL_LOGS.read(os.environ):
        return
    try:
        original = os.dup(_STANDARD_ERROR)
    except OSError:  # it is closed
        return
    os.environ.update(variables(os.environ, all_logs=False))
    reads, writes = os.pipe()
    os.dup2(writes, _STANDARD_ERROR)
    os.close(writes)
    noise = known_noise(has_gpu=has_nvidia_device())
    thread = threading.Thread(target=_filter, args=(reads, original, noise), name="tfdist-noise", daemon=True)
    thread.start()

    def put_back() -> None:
        os.dup2(original, _STANDARD_ERROR)  # the pipe ends, unless a child has it
        thread.join(timeout=_END_SECONDS)

    atexit.register(put_back)


def _filter(reads: int, original: int, noise: re.Pattern[bytes]) -> None:
    """Pass on what is no noise, until the pipe ends or the reader is gone; then writers of the pipe get an error."""
    kept, midway = b"", False  # possible noise; whether a line was shown in part
    with contextlib.suppress(OSError), open(reads, "rb", 0):  # an open pipe that nobody reads would block its writers
        while data := os.read(reads, _CHUNK):
            *lines, rest = (kept + data).split(b"\n")
            shown = b""
            for line in lines:
                shown += b"" if not midway and noise.search(line) else line + b"\n"
                midway = False
            if midway or not _MAY_BE_NOISE.match(rest):
                midway, shown, rest = midway or bool(rest), shown + rest, b""
            kept = rest
            _write(original, shown)
        _write(original, kept)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
