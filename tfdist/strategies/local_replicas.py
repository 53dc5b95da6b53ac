"""The replicas of one process: their devices, the threads that they need, and the collectives among them."""

import os
from collections.abc import Sequence

import tensorflow as tf

from tfdist.collectives.backends import replica_collectives
from tfdist.collectives.collective import Collective
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.validation import counted


def named_devices(devices: Sequence[str] | None) -> list[str]:
    """Return existing devices as TensorFlow spells them; None takes every GPU, or else every CPU."""
    present = tf_strategies.local_devices(("CPU", "GPU"))
    if devices is None:
        return [name for name in present if ":GPU:" in name] or present
    if isinstance(devices, str) or not all(isinstance(device, str) for device in devices):
        raise ConfigTypeError(
            f"devices is {devices!r}; it must be a list of names, such as ['GPU:0', 'GPU:1'].",
            name="devices",
            received=devices,
        )
    if not devices:
        raise ConfigError(
            "devices is empty; it must name at least one device. Pass None for all of this machine.",
            name="devices",
            received=devices,
        )
    names = ["/device:" + device.upper().replace("/DEVICE:", "/").strip("/").split("/")[-1] for device in devices]
    missing = [given for given, name in zip(devices, names, strict=True) if name not in present]
    if missing:
        raise ConfigError(
            f"devices names {', '.join(missing)}; this process has {', '.join(present)}. Name devices that exist, or "
            "split the CPU before TensorFlow starts: tfdist.strategies.use_logical_cpus(2).",
            name="devices",
            received=", ".join(missing),
        )
    if len(set(names)) < len(names):
        raise ConfigError(
            f"devices is {list(devices)!r}; each device may be named once.", name="devices", received=list(devices)
        )
    if len({name.split(":")[1] for name in names}) > 1:
        raise ConfigError(
            f"devices is {list(devices)!r}; all must be of one type, CPU or GPU, to reduce among themselves."
        )
    return names


def first_devices(count: int, *, needs: str, name: str, instead: str = "Ask for fewer") -> list[str]:
    """Return the first devices of this process: GPUs if it has any, else CPUs; raise if there are too few."""
    present = tf_strategies.local_devices(("GPU",)) or tf_strategies.local_devices(("CPU",))
    if len(present) < count:
        raise ConfigError(
            f"{needs}; this process has {counted(len(present), 'device')}: {', '.join(present)}. {instead}, or split "
            f"the CPU before TensorFlow starts: tfdist.strategies.use_logical_cpus({count}).",
            name=name,
            received=count,
        )
    return present[:count]


def devices_to_come() -> int:
    """Return the number of devices that a strategy without a list of them will take, without starting TensorFlow."""
    gpus = tf.config.list_physical_devices("GPU")
    (cpu,) = tf.config.list_physical_devices("CPU")
    return len(gpus) or len(tf.config.get_logical_device_configuration(cpu) or [cpu])


def ensure_threads(replicas: int) -> None:
    """Give TensorFlow one inter-op thread more than replicas, if it would have fewer and no number is set.

    A function that makes the iterator of a distributed dataset blocks one thread per replica until their batches are
    there, and making those batches needs a thread. TensorFlow has a thread per core: with two replicas on two cores
    such a function waits forever, also under TensorFlow's own strategies. A single thread runs what was ready last
    first, so a tensor for another process is sent only when nothing is left to compute.
    """
    is_set = tf.config.threading.get_inter_op_parallelism_threads() or "TF_NUM_INTEROP_THREADS" in os.environ
    if is_set or len(os.sched_getaffinity(0)) > replicas:
        return
    try:
        tf.config.threading.set_inter_op_parallelism_threads(replicas + 1)
    except RuntimeError:  # TensorFlow has started
        return


def native_collectives(backend: str, devices: Sequence[str]) -> list[Collective]:
    """Return the native collectives of replicas; none where another backend is to carry the tensors."""
    on_gpus = any("GPU" in device for device in devices)
    if backend == "native" and on_gpus:
        raise ConfigError(
            f'collectives is "native", and the replicas are on {", ".join(devices)}; native collectives are for CPUs. '
            'Choose collectives="tensorflow", which reduces by NCCL between GPUs.'
        )
    if backend not in ("native", "auto") or on_gpus or len(devices) == 1:
        return []
    try:
        return list(replica_collectives.of_replicas(devices))
    except UnsupportedError:
        if backend == "native":
            raise
        return []
