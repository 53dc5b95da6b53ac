"""Tensor layouts: HyPar's table of what travels, and its search beside all choices."""

import itertools
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.planner.layer_profile import LayerProfile, Profile
from tfdist.planner.tensor_layouts import between, inside, layouts, traffic

CHOICES: tuple[Literal["data"], Literal["model"]] = ("data", "model")


def profile(sizes: list[tuple[int, float]], batch: int = 32) -> Profile:
    layers = [
        LayerProfile(
            name=f"l{n}",
            parameter_bytes=weights,
            output_bytes=outputs,
            forward_seconds=(1.0,),
            backward_seconds=(1.0,),
        )
        for n, (weights, outputs) in enumerate(sizes)
    ]
    return Profile(model="m", batch=batch, batch_sizes=(batch,), layers=tuple(layers), whole_seconds=(1.0,))


def test_the_table() -> None:
    """For two devices: what a layer exchanges, and what travels between two, as parts of their tensors."""
    assert (inside("data", 10.0, 7.0), inside("model", 10.0, 7.0)) == (20.0, 14.0)
    table = {(a, b): between(a, b, 4.0, 12.0) for a in CHOICES for b in CHOICES}
    assert table == {
        ("data", "data"): 0.0,
        ("data", "model"): 2 * 0.25 * (4.0 + 12.0),
        ("model", "model"): 2 * 0.5 * 12.0,
        ("model", "data"): 2 * 0.5 * 12.0,
    }


def test_dense_layers_divide_weights_and_convolutions_the_batch() -> None:
    dense = (4 * 70 * 100, 4.0 * 100)  # 28 kB of weights against 12.8 kB of outputs of 32 examples
    convolution = (4 * 5 * 5 * 20 * 50, 4.0 * 8 * 8 * 50)  # 100 kB against 409.6 kB
    assert layouts(profile([dense]), 2).levels == (("model",),)
    assert layouts(profile([convolution]), 2).levels == (("data",),)


@given(
    sizes=st.lists(st.tuples(st.integers(1, 100), st.integers(0, 100).map(float)), min_size=1, max_size=10),
    batch=st.integers(1, 8),
)
def test_the_search_equals_all_choices(sizes: list[tuple[int, float]], batch: int) -> None:
    found = layouts(profile(sizes, batch), 2)
    weights, outputs = [float(w) for w, _ in sizes], [o * batch for _, o in sizes]
    every = itertools.product(CHOICES, repeat=len(sizes))
    assert found.bytes == pytest.approx(min(traffic(choices, weights, outputs) for choices in every))
    assert found.bytes == pytest.approx(traffic(found.levels[0], weights, outputs))
    assert found.bytes <= found.data_bytes + 1e-9


def test_each_halving_is_of_what_is_left() -> None:
    found = layouts(profile([(1000, 10.0)], batch=10), 8)
    # weights 1000, 500, 250 against outputs of 100 each time: the weights are divided three times
    assert found.levels == (("model",),) * 3
    assert found.bytes == 200 * (1 + 2 + 4)
    assert found.data_bytes == 2000 * (1 + 2 + 4)


@pytest.mark.parametrize("devices", [0, 1, 3, 12])
def test_devices_are_a_power_of_two(devices: int) -> None:
    with refused(ConfigError, name="devices", received=devices):
        layouts(profile([(1, 1.0)]), devices)


def test_a_model_without_weights_is_refused() -> None:
    with refused(ConfigError, name="m", mentions=["no weights"]):
        layouts(profile([(0, 1.0)]), 2)
