"""Codecs by name, for users and for saved models."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from tfdist import validation
from tfdist.compression.auto import Auto, with_memory
from tfdist.compression.codec import Codec, require_codec
from tfdist.compression.codecs.casting import BFloat16, Float16, Whole
from tfdist.compression.codecs.power_sgd import PowerSGD
from tfdist.compression.codecs.quantized import QSGD, Natural, TernGrad
from tfdist.compression.codecs.signs import OneBit, SignSGD
from tfdist.compression.codecs.sparse import DGC, RandomK, Threshold, TopK
from tfdist.compression.error_feedback import ErrorFeedback
from tfdist.errors import ConfigError

Kind = TypeVar("Kind", bound=type[Codec])

#: the class of each codec, by its own name
CLASSES: dict[str, type[Codec]] = {
    one.name: one
    for one in (
        *(Whole, Float16, BFloat16, Natural, QSGD, TernGrad),
        *(SignSGD, OneBit, TopK, DGC, RandomK, PowerSGD, Threshold, ErrorFeedback, Auto),
    )
}
#: names that are not those of classes with all defaults
_CHOICES: dict[str, Callable[[], Codec]] = {
    "qsgd-2": lambda: QSGD(bits=2),
    "qsgd-4": lambda: QSGD(bits=4),
    "qsgd-8": lambda: QSGD(bits=8),
}


def names() -> list[str]:
    """Return the names that `codec_of` takes.

    Example:
        >>> "powersgd" in names()
        True
    """
    return sorted({*CLASSES, *_CHOICES} - {ErrorFeedback.name})


def codec_of(compression: str | Codec) -> Codec:
    """Return the codec that a user asks for; with `ErrorFeedback` if it is biased and has no memory.

    Example:
        >>> codec_of("powersgd").codec
        PowerSGD(start_after=0, min_saving=2.0, rank=2)
    """
    if isinstance(compression, str):
        validation.one_of("compression", compression, names())
        codec = _CHOICES.get(compression, CLASSES.get(compression, Whole))()
    else:
        codec = require_codec("compression", compression)
    return with_memory(codec)


def register(kind: Kind) -> Kind:
    """Register a codec of your own by its ``name``, for `compression=`, saved models and the benchmark.

    Args:
        kind: a frozen dataclass derived from `Codec` or `RowCodec`.
    Returns:
        The class.
    Raises:
        ConfigError: the class has no name, or another class has the same one.

    Example:
        >>> from dataclasses import dataclass
        >>> @register
        ... @dataclass(frozen=True, kw_only=True)
        ... class Coarse(QSGD):
        ...     name = "coarse"
        ...     bits: int = 2
        >>> codec_of("coarse").bits
        2
    """
    validation.text("name", getattr(kind, "name", None), hint="Give the class one: name = ...")
    other = CLASSES.get(kind.name)
    if other is not None and (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
        raise ConfigError(f"name is {kind.name!r}, which is that of {other.__module__}.{other.__qualname__}.")
    CLASSES[kind.name] = kind
    return kind


def to_config(codec: Codec) -> dict[str, Any]:
    """Return the JSON from which `from_config` can make the codec again.

    Example:
        >>> to_config(QSGD(bits=4))
        {'name': 'qsgd', 'start_after': 0, 'min_saving': 2.0, 'group': 512, 'bits': 4, 'norm': 'euclidean'}
    """
    options = {one.name: getattr(codec, one.name) for one in fields(codec)}
    return {"name": codec.name, **{key: _to_json(value) for key, value in options.items()}}


def from_config(config: dict[str, Any]) -> Codec:
    """Return the codec from the result of `to_config`.

    Example:
        >>> from_config(to_config(QSGD(bits=4))) == QSGD(bits=4)
        True
    """
    options: dict[str, Any] = {key: _from_json(value) for key, value in config.items()}
    name = options.pop("name")
    if name not in CLASSES:
        raise ConfigError(
            f"the model was saved with the codec {name!r}, which is not known here. Import the module that defines it, "
            "with @tfdist.compression.register, before loading.",
            name="codec",
            received=name,
        )
    return CLASSES[name](**options)


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(one) for one in value]
    return to_config(value) if isinstance(value, Codec) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_from_json(one) for one in value)
    return from_config(value) if isinstance(value, dict) else value
