"""Assign a host's GPUs to the workers that share it."""

import os
from collections.abc import Mapping, Sequence

from tfdist.errors import ConfigError

VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = "/proc/driver/nvidia/gpus"  # one entry for each


def of_worker(local_index: int, count: int) -> tuple[int, ...]:
    """Return the places of a worker's GPUs among those of its host.

    Example:
        >>> of_worker(0, 2), of_worker(1, 2), of_worker(1, 0)
        ((0, 1), (2, 3), ())
    """
    return tuple(range(local_index * count, (local_index + 1) * count))


def visible(places: Sequence[int], environ: Mapping[str, str], *, driver: str = _DRIVER) -> str:
    """Return the value of CUDA_VISIBLE_DEVICES for a worker.

    Example:
        >>> visible((2, 3), {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}), visible((), {})
        ('6,7', '')
    """
    given = environ.get(VISIBLE)
    if given is not None:
        words = [word.strip() for word in given.split(",")]
        named = words[: words.index("-1")] if "-1" in words else words  # CUDA reads no further
        devices = [word for word in named if word]
        source = f"{VISIBLE} is {given!r}"
    else:
        devices = [str(number) for number in range(len(os.listdir(driver)) if os.path.isdir(driver) else 0)]
        source = f"the driver lists {len(devices)} ({driver})"
    if places and places[-1] >= len(devices):
        raise ConfigError(
            f"a worker is to have GPU {', '.join(map(str, places))} of its host (--gpus-per-worker), counted from 0, "
            f"and there {source}. Run fewer workers on a host, or ask for fewer GPUs; {VISIBLE} says which there are.",
            name=None if given is None else VISIBLE,
            received=len(devices) if given is None else given,
            path=driver if given is None else None,
        )
    return ",".join(devices[place] for place in places)
