"""Known TensorFlow log noise, and the filter that recognizes it.

Native code writes some lines before any level of logging applies, and the rest of what it writes at the level of
information begins at every process. A line is dropped only if it is one of those below; a message that is not known is
always shown. What says that there is no GPU is dropped only where the machine has none.
"""

import glob
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

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
# Of a worker that has ended while others go on, also where it had done its part: the launcher tells which worker fails,
# and an operation that needed the worker raises.
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


def has_nvidia_device(devices: str = "/sys/bus/pci/devices") -> bool:
    """Return whether a device of NVIDIA is in this machine, whatever drivers there are.

    Example:
        >>> has_nvidia_device("/nowhere")
        False
    """
    for path in glob.glob(f"{devices}/*/vendor"):
        try:
            if Path(path).read_text().strip() == _NVIDIA:
                return True
        except OSError:
            continue
    return False


def known_noise(*, has_gpu: bool) -> re.Pattern[bytes]:
    """Return what is found in a line of standard error that is known to be noise.

    Example:
        >>> noise = known_noise(has_gpu=False)
        >>> bool(noise.search(b"I0000 00:00:1.5   30103 port.cc:153] oneDNN custom operations are on. You may see"))
        True
        >>> bool(noise.search(b"W0000 00:00:1.5   30103 port.cc:153] the disk is full"))
        False
    """
    patterns = _ALWAYS if has_gpu else (*_ALWAYS, *_WITHOUT_A_GPU)
    return re.compile(b"|".join(b"(?:%b)" % pattern for pattern in patterns))


class Filter:
    """Leaves noise out of the lines of one stream, also where a message has several.

    Example:
        >>> Filter().shown([b"/job:worker/replica:0/task:1", b"Epoch 1/10"], known_noise(has_gpu=False))
        [b'/job:worker/replica:0/task:1', b'Epoch 1/10']
    """

    def __init__(self) -> None:
        self._goes_on = False  # the last line was left out as part of a message that may have more

    def shown(self, lines: Iterable[bytes], noise: re.Pattern[bytes]) -> list[bytes]:
        """Return the lines that are shown."""
        found = []
        for line in lines:
            self._goes_on = bool(_LEFT.search(line) or (self._goes_on and _LEFT_GOES_ON.search(line)))
            if not self._goes_on and not noise.search(line):
                found.append(line)
        return found


def variables(environ: Mapping[str, str], *, all_logs: bool) -> dict[str, str]:
    """Return the variables that keep native code from informing; none where the user has set the level.

    Example:
        >>> variables({}, all_logs=False), variables({"TF_CPP_MIN_LOG_LEVEL": "0"}, all_logs=False)
        ({'TF_CPP_MIN_LOG_LEVEL': '1'}, {})
    """
    return {} if all_logs or "TF_CPP_MIN_LOG_LEVEL" in environ else {"TF_CPP_MIN_LOG_LEVEL": "1"}
