"""Native collectives between the replicas of one process, where they were asked for and are possible."""

from collections.abc import Sequence

from tfdist.collectives.base import Collective
from tfdist.collectives.replicas import in_process
from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow import strategies as tf_strategies
from tfdist.errors import ConfigError, UnsupportedError


def of_devices(engine: str, devices: Sequence[str]) -> list[Collective]:
    """Return the native collectives of replicas, or none where another engine is to carry their tensors.

    Args:
        engine: "tensorflow", "native", or "auto": native where that is possible.
        devices: of the replicas of this process, who are alone.
    Raises:
        ConfigError: native collectives are asked for, and a replica is on a GPU.
        UnsupportedError: they are, and cannot be had.
    """
    if not are_for(engine, devices) or len(devices) == 1:
        return []
    try:
        return list(in_process.of_replicas(devices))
    except UnsupportedError:
        if engine == "native":
            raise
        return []


def are_for(engine: str, devices: Sequence[str]) -> bool:
    """Return whether native collectives are to be tried between these devices, and those of other processes.

    Raises:
        ConfigError: they are asked for, and a device is a GPU.
    """
    on_gpus = any("GPU" in device for device in devices)
    if engine == "native" and on_gpus:
        raise ConfigError(
            f'collectives is "native", and the replicas are on {", ".join(devices)}; native collectives are for CPUs. '
            'Choose collectives="tensorflow", which reduces by NCCL between GPUs.'
        )
    return engine != "tensorflow" and not on_gpus


def traced(collectives: Sequence[Collective]) -> list[TracedCollective]:
    """Return what a step reduces by in place of TensorFlow's collectives, for each replica of this process."""
    return [
        TracedCollective(one, bucket_bytes=tf_strategies.BYTES_PER_PACK, replica=replica)
        for replica, one in enumerate(collectives)
    ]
