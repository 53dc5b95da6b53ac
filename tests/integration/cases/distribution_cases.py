"""Distributions of Keras in a process with two logical CPUs; each function returns JSON values."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import mirrored_cases
import refusal_fields

import tfdist
from tfdist.errors import TfdistError

BOTH = ["cpu:0", "cpu:1"]


@contextlib.contextmanager
def _set(distribution: Any) -> Iterator[None]:
    keras.distribution.set_distribution(distribution)
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def _split(devices: list[str] = BOTH) -> keras.distribution.ModelParallel:
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 2), ["batch", "model"], devices))
    layouts[".*kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


def trained() -> dict[str, Any]:
    """Train plainly, by a distribution that is set, and by one that splits the model."""
    plain = mirrored_cases.trained_weights(contextlib.nullcontext())
    with _set(keras.distribution.DataParallel(devices=BOTH)):
        strategy = tfdist.strategies.from_distribution()
        weights = mirrored_cases.trained_weights(strategy.scope())
    split = mirrored_cases.trained_weights(tfdist.strategies.from_distribution(_split()).scope())
    return {"plain": plain, "distributed": weights, "split": split, "replicas": strategy.num_replicas_in_sync}


def refusals() -> dict[str, list[Any]]:
    """Return the report of the error for each distribution that the strategy cannot follow."""
    reports = {}

    def refused(name: str, action: Callable[[], Any]) -> None:
        reports[name] = refusal_fields.met(action, TfdistError)

    make = tfdist.strategies.from_distribution
    mesh = keras.distribution.DeviceMesh((1, 2), ["batch", "model"], BOTH)
    several_axes = keras.distribution.DataParallel(devices=BOTH)
    several_axes._device_mesh = mesh  # Keras 3.15 means to warn of these, and raises TypeError
    refused("none set", make)
    refused("split", lambda: make(_split(["cpu:0", "cpu:7"])))
    refused("axes", lambda: make(several_axes))
    refused("mesh", lambda: make(mesh))
    refused("missing", lambda: make(keras.distribution.DataParallel(devices=["cpu:0", "cpu:7"])))
    for name, distribution in (("fit split", _split()), ("fit one", keras.distribution.DataParallel(devices=BOTH[:1]))):
        with _set(distribution):
            refused(name, lambda: mirrored_cases.trained_weights(mirrored_cases.STRATEGY.scope()))
    return reports
