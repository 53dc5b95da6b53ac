"""The codecs that are measured: names with options after a colon, their peers, and their workers."""

import contextlib
import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tfdist.bench.workers import lanes
from tfdist.bench.workers.slow_network import EmulatedLink, network
from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from tfdist.compression.codec import Codec


AUTO, NONE = "auto", "none"
#: the peer, and what an infinitely good codec would give
HOROVOD, NOOP = "horovod", "noop"

DEFAULT = (
    *(NONE, "float16", "bfloat16", "natural", "qsgd-8", "qsgd-4", "terngrad"),
    *("onebit", "topk", "dgc", "randomk", "powersgd"),
)


def load(modules: Sequence[str]) -> None:
    """Import modules that register codecs, also from the current folder."""
    for module in modules:
        if "" not in sys.path:
            sys.path.insert(0, "")
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"{module!r} cannot be imported ({error}). Name a module in this folder or on PYTHONPATH."
            ) from error


def parsed(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the options of a codec as it is written on the command line.

    Example:
        >>> parsed("powersgd:rank=4,min_saving=1.5")
        ('powersgd', {'rank': 4, 'min_saving': 1.5})
        >>> parsed("auto:within=unbiased")
        ('auto', {'within': 'unbiased'})
    """
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, sign, value = part.partition("=")
        if not sign or not value.strip():
            raise ConfigError(f"codec {text!r}: {part!r} is not an option; write NAME=VALUE, such as rank=4.")
        try:
            options[key.strip()] = json.loads(value)
        except ValueError:
            options[key.strip()] = value.strip()
    return name.strip(), options


def codec_of(text: str) -> "Codec":
    from tfdist.compression.registry import codec_of as registered

    name, options = parsed(text)
    named = registered(name)
    if not options:
        return named
    inner = getattr(named, "codec", named) if named.name == "errorfeedback" else named
    known = [field.name for field in dataclasses.fields(inner)]
    if unknown := [option for option in options if option not in known]:
        raise ConfigError(f"codec {name!r} has no option {unknown[0]!r}; it has {', '.join(known)}.")
    return registered(dataclasses.replace(inner, **options))


@dataclass(frozen=True, kw_only=True)
class Compared:
    """The ways to reduce gradients: the lane of each, by name, and the reason why one cannot run, by name."""

    lanes: Mapping[str, str]
    left_out: Mapping[str, str]


def compared(codecs: Sequence[str], *, bound: bool, horovod: bool | None = None) -> Compared:
    """Return the lanes to measure: each codec, no compression, Horovod if installed, and with ``bound`` the limit."""
    if horovod is None:
        horovod = strategy_table.get("ring").is_installed
    names = [*([NOOP] if bound else []), *([HOROVOD] if horovod else []), *dict.fromkeys([NONE, *codecs])]
    return Compared(
        lanes={name: "horovod" if name == HOROVOD else "multi-worker" for name in names},
        left_out={} if horovod else {HOROVOD: "it is not installed. Install it: tfdist build horovod"},
    )


def require_equal_parts(global_batch_size: int, workers: int) -> None:
    if global_batch_size % workers:
        raise ConfigError(
            f"the global batch has {global_batch_size} examples for {workers} workers; Horovod's loop takes as many on "
            f"each. Choose a multiple of {workers}."
        )


@contextlib.contextmanager
def linked_lanes(found: Compared, workers: int, link: EmulatedLink | None) -> Iterator[lanes.Call]:
    with contextlib.ExitStack() as stack:
        joined = stack.enter_context(network(link, workers)) if link else None
        lane = {name: lanes.Lane(name, workers=workers, network=joined) for name in dict.fromkeys(found.lanes.values())}
        yield stack.enter_context(lanes.running({name: lane[one] for name, one in found.lanes.items()}))


def where(link: EmulatedLink | None) -> str:
    return f"behind links of {link}" if link else "on this machine"
