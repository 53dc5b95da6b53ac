"""The profile of a model: time and bytes of each layer, in a JSON file. Loads no TensorFlow."""

import dataclasses
import functools
import json
import os
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, MissingFileError, fields_of

VERSION = 1
KIND = "profile of layers"


@dataclass(frozen=True, kw_only=True)
class LayerProfile:
    """The profile of one call of a layer.

    Attributes:
        name: the name of the layer.
        kind: the name of its class.
        may_begin_stage: whether a stage of a pipeline may begin with it. A stage may not begin with the second call of
            a shared layer, with an operation that is not a layer, or with the loss.
        inputs: the calls whose results it takes, as indexes in the profile; inputs of the model do not count.
        parameter_bytes: the size of the trainable weights in bytes, given at each call of a shared layer.
        state_bytes: the size of the other weights in bytes.
        output_bytes: the size of the output for one example, in bytes.
        gradient_bytes: the size of the output's gradient for one example, in bytes; integers have none.
        kept_bytes: the size of the values that the forward pass of one example keeps for the backward pass, without the
            inputs, in bytes.
        divides: the number that a number of parts must divide for the layer to compute with a part of its weights: its
            units, filters, heads or words; 0 if it cannot, or is called twice.
        joins: whether no other layer takes the result of the layer before, so that this one can take it in parts.
        forward_seconds, backward_seconds: the time of each pass in seconds, for each batch size of the profile.
    """

    name: str
    kind: str = ""
    may_begin_stage: bool = True
    inputs: tuple[int, ...] = ()
    parameter_bytes: int = 0
    state_bytes: int = 0
    output_bytes: float = 0.0
    gradient_bytes: float = 0.0
    kept_bytes: float = 0.0
    divides: int = 0
    joins: bool = False
    forward_seconds: tuple[float, ...]
    backward_seconds: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Profile:
    """The profile of a model: its layers, and the costs of the whole.

    Attributes:
        model: the name of the model.
        batch: the number of examples in a step of the script, over all devices.
        batch_sizes: the batch sizes with which layers were measured, in rising order.
        layers: the calls of layers, in the order in which the model computes them.
        whole_seconds: the time of the forward and backward pass of the whole model, for each batch size.
        repeated_seconds: each measurement of that time with the largest batch size.
        update_seconds: the time of the optimizer's update of all weights.
        adding_seconds: the time of adding the gradients of all weights to earlier ones, as each micro-batch after the
            first does.
        fixed_seconds: the rest of the time of a step of `fit`.
        call_seconds: the time of a call of a compiled function that does nothing; it is subtracted from the layers'
            times.
        slot_bytes: the size of the optimizer's variables for all weights, in bytes.
        machine: a description of the machine of the measurement.
        processes: the number of processes measured at once, each with the whole model; they share caches and memory
            bandwidth.
        alone: the profile of the same model in one process alone, if several were measured at once.

    Raises:
        ConfigError: numbers of measurements differ; an input is not before its layer; a number is negative; or the
            model that was measured alone is a different one.

    Example:
        >>> layers = [LayerProfile(name=name, forward_seconds=(1.0, 2.0), backward_seconds=(1.0, 4.0)) for name in "ab"]
        >>> one = Profile(model="m", batch=8, batch_sizes=(4, 8), layers=tuple(layers), whole_seconds=(5.0, 12.0))
        >>> one.coverage, one.seconds(6)
        ((0.8, 1.0), [(1.625, 2.625), (1.625, 2.625)])
    """

    model: str
    batch: int
    batch_sizes: tuple[int, ...]
    layers: tuple[LayerProfile, ...]
    whole_seconds: tuple[float, ...]
    repeated_seconds: tuple[float, ...] = ()
    update_seconds: float = 0.0
    adding_seconds: float = 0.0
    fixed_seconds: float = 0.0
    call_seconds: float = 0.0
    slot_bytes: int = 0
    machine: dict[str, str] = field(default_factory=dict)
    processes: int = 1
    alone: "Profile | None" = None

    def __post_init__(self) -> None:
        if not self.layers or not self.batch_sizes:
            raise ConfigError(
                "the profile has no layer or no batch size; measure a model with one layer at least.", name="layers"
            )
        if list(self.batch_sizes) != sorted(set(self.batch_sizes)) or self.batch_sizes[0] < 1 or self.batch < 1:
            raise ConfigError(
                f"the batch sizes are {self.batch_sizes}; they must rise, from 1 on.",
                name="batch_sizes",
                received=self.batch_sizes,
            )
        sizes = len(self.batch_sizes)
        for place, one in enumerate(self.layers):
            if not len(one.forward_seconds) == len(one.backward_seconds) == len(self.whole_seconds) == sizes:
                raise ConfigError(
                    f"the layer {one.name!r} has not one time for each of the "
                    f"{validation.counted(sizes, 'batch size')}.",
                    name=one.name,
                )
            if any(not 0 <= source < place for source in one.inputs):
                raise ConfigError(
                    f"the layer {one.name!r} takes {one.inputs}; inputs must lie before place {place}.",
                    name=one.name,
                    received=one.inputs,
                )
            numbers = (*one.forward_seconds, *one.backward_seconds, one.parameter_bytes, one.state_bytes)
            if min(*numbers, one.output_bytes, one.gradient_bytes, one.kept_bytes, one.divides) < 0:
                raise ConfigError(f"the layer {one.name!r} has a negative time or size.", name=one.name)
        numbers = self.update_seconds, self.adding_seconds, self.fixed_seconds, self.call_seconds, self.slot_bytes
        if min(*self.whole_seconds, *self.repeated_seconds, *numbers) < 0:
            raise ConfigError("the profile has a negative time or size.")
        validation.integer("processes", self.processes, minimum=1)
        if self.alone is not None:
            own, other = self._described(), self.alone._described()
            if self.alone.alone is not None or self.alone.processes != 1 or own != other:
                raise ConfigError(
                    "the profile of one process alone must be of the same layers and batch, and have none of its own.",
                    name="alone",
                )

    def _described(self) -> tuple[int, list[str]]:
        return self.batch, [one.name for one in self.layers]

    def for_devices(self, devices: int) -> "Profile":
        """Return the profile for plans with this many devices; for one device, `alone` if it is known.

        Args:
            devices: the number of devices, at least 1.
        """
        return self if devices > 1 or self.alone is None else self.alone

    @functools.cached_property
    def parameter_bytes(self) -> int:
        """The size of all trainable weights in bytes."""
        return sum(one.parameter_bytes for one in self.layers)

    @property
    def coverage(self) -> tuple[float, ...]:
        """The sum of the layers' times, as a part of the time of the whole model, for each batch size."""
        pairs = zip(self._sums(), self.whole_seconds, strict=True)
        return tuple(total / whole if whole else 1.0 for total, whole in pairs)

    def seconds(self, batch: float) -> list[tuple[float, float]]:
        """Return the seconds of each layer's forward and backward pass for a batch, which add up to the whole time.

        Times are interpolated linearly between the measured batch sizes, and extrapolated from the nearest two. Below
        the smallest batch size, they are at least proportional to the batch. Each layer has its measured share of the
        whole.

        Args:
            batch: the number of examples, above 0.
        """
        pairs = zip(self._sums(), self.whole_seconds, strict=True)
        scales = [whole / total if total else 1.0 for total, whole in pairs]

        def at(seconds: Sequence[float]) -> float:
            scaled = [one * scale for one, scale in zip(seconds, scales, strict=True)]
            return _on_line(self.batch_sizes, scaled, batch)

        return [(at(one.forward_seconds), at(one.backward_seconds)) for one in self.layers]

    def _sums(self) -> list[float]:
        sizes = range(len(self.batch_sizes))
        return [sum(one.forward_seconds[i] + one.backward_seconds[i] for one in self.layers) for i in sizes]

    def to_json(self) -> str:
        """Return the profile as a JSON document for `read`; docs/parallel-plan.md describes it."""
        return json.dumps(self._content(), indent=1)

    def _content(self) -> dict[str, Any]:
        alone = self.alone and self.alone._content()
        return {"kind": KIND, "version": VERSION, **dataclasses.asdict(self), "alone": alone}

    @classmethod
    def from_json(cls, text: str, *, name: str = "the profile") -> "Profile":
        """Return the profile in a document.

        Args:
            text: the document, as `to_json` writes it.
            name: the name of the document, for messages.
        Raises:
            ConfigError: the document is not a profile, or has another version; or a value is missing, unknown or of the
                wrong type.
        """
        try:
            content = json.loads(text)
        except ValueError as error:
            raise ConfigError(f"{name} is not JSON: {error}. {_WRITE}", name=name) from error
        if not isinstance(content, dict) or content.get("kind") != KIND:
            raise ConfigError(f'{name} is not a profile of layers (it has no "kind": {KIND!r}). {_WRITE}', name=name)
        if content.get("version") != VERSION:
            raise ConfigError(
                f"{name} has version {content.get('version')!r}; it must be {VERSION}. {_WRITE}",
                name=name,
                received=content.get("version"),
            )
        given = {key: value for key, value in content.items() if key not in ("kind", "version")}
        if given.get("alone") is not None:
            given["alone"] = cls.from_json(json.dumps(given["alone"]), name=f"{name}: alone")
        layers = given.get("layers")
        if not isinstance(layers, list):
            raise validation.mismatch(f"{name}: layers", layers, f"a list. {_WRITE}")
        made = [_made(LayerProfile, one, f"{name}: layers[{place}]") for place, one in enumerate(layers)]
        try:
            return _made(cls, {**given, "layers": tuple(made)}, name)
        except ConfigError as error:
            said = str(error) if str(error).startswith(name) else f"{name}: {error}"
            raise type(error)(said, **fields_of(error)) from error


def beside_each_other(profiles: Sequence[Profile], alone: Profile) -> Profile:
    """Merge the profiles of processes that were measured at once, and add the profile of one process alone.

    The slowest process decides. Its times are lengthened by the usual delay of the last process of a turn behind it.
    """
    slowest = max(profiles, key=lambda one: one.whole_seconds[-1])
    longer = 1.0
    if slowest.whole_seconds[-1] and all(one.repeated_seconds for one in profiles):
        turns = zip(*(one.repeated_seconds for one in profiles), strict=False)  # one may have had more of them
        longer = max(statistics.fmean(max(turn) for turn in turns) / slowest.whole_seconds[-1], 1.0)
    return dataclasses.replace(
        slowest,
        processes=len(profiles),
        alone=alone,
        whole_seconds=tuple(longer * one for one in slowest.whole_seconds),
        update_seconds=longer * slowest.update_seconds,
        repeated_seconds=(),
    )


_WRITE = "Write one with `tfdist parallel plan --save-profile FILE train.py`."


def read(path: str | os.PathLike[str]) -> Profile:
    """Return the profile in a file.

    Raises:
        MissingFileError: there is no such file.
        ConfigError: the file is not a profile; see `Profile.from_json`.

    Example:
        >>> read("profile.json").batch_sizes                           # doctest: +SKIP
        (8, 64)
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingFileError(f"there is no profile {os.fspath(path)!r}. {_WRITE}", path=path) from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{os.fspath(path)!r} cannot be read as a profile: {error}. {_WRITE}", path=path) from error
    return Profile.from_json(text, name=os.fspath(path))


def _made(kind: type[Any], given: Any, name: str) -> Any:
    """Make an object of a class from a document's values, which must have the types of its fields."""
    if not isinstance(given, Mapping):
        raise validation.mismatch(name, given, f"an object. {_WRITE}", kind=ConfigTypeError)
    fields = {one.name: one for one in dataclasses.fields(kind)}
    for key in given:
        if key not in fields:
            raise ConfigError(
                f"{name} has {key!r}, which is not known.{validation.nearest(key, fields)} {_WRITE}",
                name=name,
                received=key,
            )
    needed = dataclasses.MISSING
    missing = [k for k, f in fields.items() if k not in given and f.default is needed and f.default_factory is needed]
    if missing:
        raise ConfigError(f"{name} has no {', '.join(missing)}. {_WRITE}", name=name)
    return kind(**{key: _value(value, fields[key].type, f"{name}: {key}") for key, value in given.items()})


def _value(value: Any, kind: Any, name: str) -> Any:
    checks: dict[Any, Callable[[str, Any], Any]] = {
        bool: validation.boolean,
        int: validation.integer,
        float: validation.number,
    }
    if kind in checks:
        return checks[kind](name, value)
    required = ""
    if kind is str and not isinstance(value, str):
        required = "a text"
    if kind in (tuple[int, ...], tuple[float, ...]):
        if isinstance(value, list):
            return tuple(checks[kind.__args__[0]](name, one) for one in value)
        required = "a list of numbers"
    if kind == dict[str, str] and not (isinstance(value, dict) and all(isinstance(v, str) for v in value.values())):
        required = "an object of texts"
    if required:
        raise validation.mismatch(name, value, f"{required}. {_WRITE}", kind=ConfigTypeError)
    return value


def _on_line(sizes: Sequence[int], seconds: Sequence[float], batch: float) -> float:
    if len(sizes) == 1:
        return seconds[0] * batch / sizes[0]
    upper = next((place for place in range(1, len(sizes) - 1) if batch <= sizes[place]), len(sizes) - 1)
    (low, high), (less, more) = (sizes[upper - 1], sizes[upper]), (seconds[upper - 1], seconds[upper])
    found = less + (more - less) * (batch - low) / (high - low)
    if batch < sizes[0]:
        return max(found, seconds[0] * batch / sizes[0])
    return max(found, 0.0) if batch <= sizes[-1] else max(found, seconds[-1])


def shown_processes(number: int) -> str:
    return "one process alone" if number == 1 else f"{number} processes at once"
