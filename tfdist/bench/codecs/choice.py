"""Which codecs are measured: names, with options behind a colon."""

import dataclasses
import importlib
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from tfdist.compression.codec import Codec

__all__ = ["AUTO", "DEFAULT", "HOROVOD", "NONE", "NOOP", "codec_of", "load", "parsed"]

AUTO, NONE = "auto", "none"
#: the peer, and what an infinitely good codec would give
HOROVOD, NOOP = "horovod", "noop"

DEFAULT = (
    *(NONE, "float16", "bfloat16", "natural", "qsgd-8", "qsgd-4", "terngrad"),
    *("onebit", "topk", "dgc", "randomk", "powersgd"),
)


def load(modules: Sequence[str]) -> None:
    """Import modules that register codecs of the user's, also out of the current folder.

    Raises:
        MissingDependencyError: there is no such module.
    """
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

    Raises:
        ConfigError: an option without a value.

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
            raise ConfigError(f"a codec is {text!r}, whose option {part!r} is none; write NAME=VALUE, such as rank=4.")
        try:
            options[key.strip()] = json.loads(value)
        except ValueError:
            options[key.strip()] = value.strip()
    return name.strip(), options


def codec_of(text: str) -> "Codec":
    """Return a codec by its name and options; loads TensorFlow.

    Raises:
        ConfigError: no such codec, or it has no such option.

    Example:
        >>> codec_of("powersgd:rank=4").codec.rank
        4
    """
    from tfdist.compression import registry

    name, options = parsed(text)
    named = registry.codec_of(name)
    if not options:
        return named
    inner = getattr(named, "codec", named) if named.name == "errorfeedback" else named
    known = [field.name for field in dataclasses.fields(inner)]
    if unknown := [option for option in options if option not in known]:
        raise ConfigError(f"codec {name!r} has no option {unknown[0]!r}; it has {', '.join(known)}.")
    return registry.codec_of(dataclasses.replace(inner, **options))
