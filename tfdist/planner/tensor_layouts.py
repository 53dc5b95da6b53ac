"""The choice of layers that cut weights and layers that cut the batch, by HyPar's rule. Loads no TensorFlow.

Two halves of a layer each have half of the batch and all weights ("data"), and exchange gradients of weights. Or they
have half of the weights and all of the batch ("model"), and exchange sums of outputs. For 2^H devices this is done H
times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner.layer_profile import Profile

Choice = Literal["data", "model"]
_CHOICES: tuple[Choice, Choice] = ("data", "model")


@dataclass(frozen=True, kw_only=True)
class TensorLayouts:
    """The layouts of all layers.

    Attributes:
        names: the names of the layers.
        levels: for each halving of the devices, the outermost first, the choice of what each layer divides.
        bytes: the bytes that travel in a step over all devices, with these layouts.
        data_bytes: the bytes that travel if every layer divides the batch: data parallelism.
    """

    names: tuple[str, ...]
    levels: tuple[tuple[Choice, ...], ...]
    bytes: float
    data_bytes: float


def inside(choice: Choice, weights: float, outputs: float) -> float:
    """Return the bytes between two halves of a layer: gradients of weights ("data") or partial outputs ("model")."""
    return 2 * (weights if choice == "data" else outputs)


def between(first: Choice, second: Choice, outputs: float, errors: float) -> float:
    """Return the bytes sent between a layer and the next one, for two halves.

    Example:
        >>> [between(a, b, 4.0, 8.0) for a in ("data", "model") for b in ("data", "model")]
        [0.0, 6.0, 8.0, 8.0]
    """
    if first == "data":
        return 0.0 if second == "data" else 2 * 0.25 * (outputs + errors)
    return 2 * 0.5 * errors


def traffic(choices: Sequence[Choice], weights: Sequence[float], outputs: Sequence[float]) -> float:
    """Return the bytes sent between two halves of a chain of layers with these choices."""
    own = sum(inside(*one) for one in zip(choices, weights, outputs, strict=True))
    pairs = zip(choices[:-1], choices[1:], outputs[:-1], strict=True)
    return own + sum(between(first, second, size, size) for first, second, size in pairs)


def layouts(profile: Profile, devices: int) -> TensorLayouts:
    """Return the choice of each layer at each halving of the devices that minimizes the bytes sent at that halving.

    Layers count in the order of the profile, as a chain; those without weights divide what the one before divides.

    Args:
        profile: the profile of the model.
        devices: the number of devices, a power of 2.
    Raises:
        ConfigError: the number is not a power of 2.

    Example:
        >>> from tfdist.planner.layer_profile import LayerProfile
        >>> sizes = {"convolution": (100, 1e4), "dense": (10**6, 10.0)}
        >>> layers = [
        ...     LayerProfile(name=n, parameter_bytes=w, output_bytes=o, forward_seconds=(1.0,), backward_seconds=(1.0,))
        ...     for n, (w, o) in sizes.items()
        ... ]
        >>> profile = Profile(model="m", batch=4, batch_sizes=(4,), layers=tuple(layers), whole_seconds=(4.0,))
        >>> layouts(profile, 2).levels
        (('data', 'model'),)

    Source: L. Song et al., "HyPar: Towards Hybrid Parallelism for Deep Learning Accelerator Array", 2019. As in HyPar,
        each halving is the best one given those before; all of them together need not be.
    """
    validation.integer("devices", devices, minimum=2)
    if devices & (devices - 1):
        raise ConfigError(
            f"devices is {devices}; it must be a power of 2, since they are halved again and again.",
            name="devices",
            received=devices,
        )
    layers = [one for one in profile.layers if one.parameter_bytes]
    if not layers:
        raise ConfigError(
            f"the model {profile.model!r} has no weights; nothing of it would travel.", name=profile.model
        )
    weights = [float(one.parameter_bytes) for one in layers]
    outputs = [one.output_bytes * profile.batch for one in layers]
    levels: list[tuple[Choice, ...]] = []
    total, plain, groups = 0.0, 0.0, 1
    while groups < devices:
        chosen = _least(weights, outputs)
        levels.append(chosen)
        total += groups * traffic(chosen, weights, outputs)
        plain += groups * 2 * sum(float(one.parameter_bytes) for one in layers)
        # each half has half of the outputs if the batch is divided, else half of the weights
        outputs = [size / 2 if choice == "data" else size for choice, size in zip(chosen, outputs, strict=True)]
        weights = [size / 2 if choice == "model" else size for choice, size in zip(chosen, weights, strict=True)]
        groups *= 2
    return TensorLayouts(names=tuple(one.name for one in layers), levels=tuple(levels), bytes=total, data_bytes=plain)


def _least(weights: Sequence[float], outputs: Sequence[float]) -> tuple[Choice, ...]:
    """Return the choices with the least traffic; ties go to those that divide the batch first."""
    best: dict[Choice, tuple[float, tuple[Choice, ...]]] = {
        choice: (inside(choice, weights[0], outputs[0]), (choice,)) for choice in _CHOICES
    }
    for place in range(1, len(weights)):
        size, now = outputs[place - 1], dict(best)
        for choice in _CHOICES:
            own = inside(choice, weights[place], outputs[place])
            now[choice] = min(
                (behind + between(before, choice, size, size) + own, (*chosen, choice))
                for before, (behind, chosen) in best.items()
            )
        best = now
    return min(best.values())[1]
