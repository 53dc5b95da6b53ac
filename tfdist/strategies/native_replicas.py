"""Native collectives between the replicas of one process, where they were asked for and are possible."""

from collections.abc import Sequence

from tfdist.collectives.collective import Collective
from tfdist.collectives.replicas import in_process
from tfdist.collectives.traced import TracedCollective
from tfdist.errors import ConfigError, UnsupportedError


def of_devices(engine: str, devices: Sequence[str]) -> list[Collective]:
    """Return the native collectives of replicas, or none where another engine is to carry their tensors."""
    on_gpus = any("GPU" in device for device in devices)
    if engine == "native" and on_gpus:
        raise ConfigError(
            f'collectives is "native", and the replicas are on {", ".join(devices)}; native collectives are for CPUs. '
            'Choose collectives="tensorflow", which reduces by NCCL between GPUs.'
        )
    if engine not in ("native", "auto") or on_gpus or len(devices) == 1:
        return []
    try:
        return list(in_process.of_replicas(devices))
    except UnsupportedError:
        if engine == "native":
            raise
        return []


def traced(collectives: Sequence[Collective], bucket_bytes: int) -> list[TracedCollective]:
    """Return what a step reduces by, for each replica of this process."""
    return [
        TracedCollective(one, bucket_bytes=bucket_bytes, replica=replica) for replica, one in enumerate(collectives)
    ]


def of_rows(collectives: Sequence[Collective], bucket_bytes: int) -> list[TracedCollective]:
    """Return what gathers rows of tables in a step, for each replica of this process.

    It has keys of its own, since one replica may reduce more than the others by other collectives.
    """
    return [
        TracedCollective(one, bucket_bytes=bucket_bytes, replica=-1 - replica)
        for replica, one in enumerate(collectives)
    ]
