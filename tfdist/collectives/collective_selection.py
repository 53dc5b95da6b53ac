"""The choice of the workers' backend, as a pure function of all offers, so that all choose the same. No TensorFlow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tfdist.errors import ConfigError, MissingDependencyError, UnsupportedError


@dataclass(frozen=True, kw_only=True)
class Offer:
    """The request and the abilities of one worker, which workers exchange before a backend is chosen.

    Attributes:
        asked: the name of the requested backend, or "auto".
        devices: the devices of the worker's replicas.
        missing: the reason why the worker cannot use the requested backend, or native ones under "auto"; empty: it can.
        cards: the cards of its devices: equal for devices that share one, and "" for a CPU.
    """

    asked: str
    devices: tuple[str, ...]
    missing: str = ""
    cards: tuple[str, ...] = ()


class Choice(NamedTuple):
    """The backend of all workers.

    Attributes:
        engine: the name of the backend, one of `strategy_table.COLLECTIVES` except "auto".
        why: the reason, as a clause.
        is_second_best: whether another backend would be better, and something can be done about it.
    """

    engine: str
    why: str
    is_second_best: bool = False


def chosen(offers: Sequence[Offer]) -> Choice:
    """Return the backend of all workers, chosen from their offers."""
    asked = offers[0].asked
    other = next((index for index, offer in enumerate(offers) if offer.asked != asked), None)
    if other is not None:
        raise ConfigError(
            f'collectives is "{asked}" on worker 0 and "{offers[other].asked}" on worker {other}. Ask for the same on '
            "every worker.",
            name="collectives",
            received=offers[other].asked,
            workers=(0, other),
        )
    several = next((index for index, offer in enumerate(offers) if len(offer.devices) > 1), None)
    gpu = next((index for index, offer in enumerate(offers) if "GPU" in offer.devices[0]), None)
    lacking = [index for index, offer in enumerate(offers) if offer.missing]
    missing = [f"worker {index}: {offers[index].missing}" for index in lacking]
    if asked == "auto":
        if several is not None:
            return Choice("tensorflow", f"worker {several} has several replicas")
        if gpu is not None:
            return Choice("tensorflow", f"worker {gpu} has a GPU")
        if missing:
            return without_native(missing[0])
        return Choice("native", "each worker has one CPU replica")
    if asked == "tensorflow":
        return Choice(asked, "it was asked for")
    uneven = next((index for index, offer in enumerate(offers) if len(offer.devices) != len(offers[0].devices)), None)
    if asked == "native" and uneven is not None:
        raise ConfigError(
            f"worker 0 has the replicas {', '.join(offers[0].devices)}, and worker {uneven} has "
            f"{', '.join(offers[uneven].devices)}; every worker must have as many.",
            name="collectives",
            received=asked,
            workers=(0, uneven),
        )
    wrong = gpu if asked == "native" else several
    if wrong is not None:
        kind = "for CPUs" if asked == "native" else "for one replica per worker"
        cure = "Choose" if asked == "native" else "Start more workers with one each, or choose"
        raise ConfigError(
            f'collectives is "{asked}", and worker {wrong} has the replicas {", ".join(offers[wrong].devices)}; '
            f'{asked} collectives are {kind}. {cure} collectives="tensorflow".',
            name="collectives",
            received=asked,
            workers=(wrong,),
        )
    if missing and asked == "horovod":
        raise MissingDependencyError(
            f'collectives is "horovod"; {"; ".join(missing)}', name="collectives", received=asked, workers=lacking
        )
    if missing:
        raise UnsupportedError(
            "the native collectives need a C++ compiler, or a compiled copy in the cache, on every worker; "
            f'{"; ".join(missing)}. Fix that, or choose collectives="tensorflow".',
            name="collectives",
            received=asked,
            workers=lacking,
        )
    return Choice(asked, "it was asked for")


def without_native(missing: str) -> Choice:
    """Return the backend for workers on which native collectives would be better, given why these are missing."""
    reason = f"native collectives, which are faster, cannot be had ({missing.rstrip('.')})"
    return Choice("tensorflow", reason, is_second_best=True)
