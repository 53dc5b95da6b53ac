"""Queries to TensorFlow in a child process, so that the doctor neither waits for a driver nor opens a GPU."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfdist.doctor import child

_MARK = "tfdist-doctor:"

# Each part is asked for on its own, so that one that fails hides no other.
_PROGRAM = f"""
import ctypes, glob, json, os, sys
import tensorflow as tf
said = dict(version=tf.__version__, build=dict(tf.sysconfig.get_build_info()))
said["gpus"] = [device.name for device in tf.config.list_physical_devices("GPU")]
def keras():
    import keras
    return keras.__version__
def capabilities():
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [found["compute_capability"] for found in details if "compute_capability" in found]
def nccl():
    wheels = [found for root in sys.path for found in glob.glob(root + "/nvidia/nccl/lib/libnccl.so.2")]
    number = ctypes.c_int()
    ctypes.CDLL((wheels or ["libnccl.so.2"])[0]).ncclGetVersion(ctypes.byref(number))
    return number.value
def horovod():
    import horovod.tensorflow as hvd
    return dict(gloo=bool(hvd.gloo_built()), mpi=bool(hvd.mpi_built()), nccl=bool(hvd.nccl_built()))
for name, ask in dict(keras=keras, capabilities=capabilities, nccl=nccl, horovod=horovod).items():
    try:
        said[name] = ask()
    except Exception as error:
        said[name + "_error"] = f"{{type(error).__name__}}: {{error}}"
    print("{_MARK}" + json.dumps(said, default=str), flush=True)  # each time: what comes next may crash
os._exit(0)
"""


@dataclass(frozen=True, kw_only=True)
class Framework:
    """The state of TensorFlow, Keras, NCCL and Horovod, as a child process saw it when it loaded them."""

    error: str = ""  # why it could not be asked; empty when it answered
    version: str = ""  # TensorFlow's version
    keras: str = ""  # Keras' version; empty when it does not load
    keras_error: str = ""  # why Keras does not load
    # TensorFlow's build information (``is_cuda_build``, ``cuda_version``, ``cudnn_version``, ...)
    build: Mapping[str, Any] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()  # names of the GPUs that TensorFlow can use
    capabilities: tuple[tuple[int, int], ...] = ()  # compute capabilities of these GPUs, such as ``(8, 0)``
    nccl: int | None = None  # NCCL's version as one number (22703 for 2.27.3); None when it does not load
    # how Horovod was built (``gloo``, ``mpi``, ``nccl``); None when it does not load
    horovod: Mapping[str, bool] | None = None
    horovod_error: str = ""  # why Horovod does not load


def observe(environ: Mapping[str, str], *, timeout_seconds: float) -> Framework:
    quiet = {**environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    return interpret(child.run([sys.executable, "-P", "-c", _PROGRAM], timeout_seconds=timeout_seconds, environ=quiet))


def interpret(outcome: child.Outcome) -> Framework:
    lines = [line for line in outcome.output.splitlines() if line.startswith(_MARK)]
    if not lines:
        return Framework(error=_how_it_ended(outcome))
    said = json.loads(lines[-1].removeprefix(_MARK))
    crash = "" if outcome.code == 0 or "horovod" in said else _how_it_ended(outcome)
    return Framework(
        version=said["version"],
        keras=said.get("keras", ""),
        keras_error=said.get("keras_error", ""),
        build=said["build"],
        gpus=tuple(said["gpus"]),
        capabilities=tuple((major, minor) for major, minor in said.get("capabilities", ())),
        nccl=said.get("nccl"),
        horovod=said.get("horovod"),
        horovod_error=said.get("horovod_error", crash),
    )


def _how_it_ended(outcome: child.Outcome) -> str:
    last = outcome.errors.splitlines()[-1] if outcome.errors else "it said nothing"
    return f"ended by signal {-outcome.code}; {last}" if outcome.code is not None and outcome.code < 0 else last
