"""The first values of weights in parts: those of one device, bit for bit."""

import contextlib
import math
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfdist.cluster.mesh import Mesh
from tfdist.parallel import sharded_initializers
from tfdist.parallel import weight_layouts as lying
from tfdist.parallel.mesh_axes import Axes
from tfdist.parallel.weight_layouts import MeshLayout

SHAPE = (70, 21, 3)
INITIALIZERS = {
    "glorot_uniform": keras.initializers.GlorotUniform(seed=3),
    "he_normal": keras.initializers.HeNormal(seed=4),
    "normal": keras.initializers.RandomNormal(mean=1.0, stddev=2.0, seed=5),
    "uniform": keras.initializers.RandomUniform(minval=1.0, maxval=3.0, seed=6),
    "truncated_normal": keras.initializers.TruncatedNormal(seed=7),
    "scaling": keras.initializers.VarianceScaling(distribution="untruncated_normal", seed=2),
    "zeros": keras.initializers.Zeros(),
    "ones": keras.initializers.Ones(),
    "constant": keras.initializers.Constant(2.5),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("name", INITIALIZERS)
def test_stretches_are_those_of_the_whole(name: str, dtype: str) -> None:
    whole = np.ravel(tf.convert_to_tensor(INITIALIZERS[name](SHAPE, dtype=dtype)))
    found = sharded_initializers.numbers_of(INITIALIZERS[name], SHAPE, dtype)
    if dtype == "float64" and name in ("he_normal", "truncated_normal"):
        assert found is None  # they are laid out otherwise
        return
    assert found is not None
    for begin, end in [
        (0, whole.size),
        (1, 2),
        (63, 126),
        (1001, whole.size),
        (whole.size - 1, whole.size),
        (258, 3000),
    ]:
        assert np.array_equal(found.stretch(begin, end), whole[begin:end])


@pytest.mark.parametrize("initializer", ["orthogonal", lambda shape, dtype: tf.cumsum(tf.ones(shape, dtype))])
def test_what_is_made_in_another_way_is_seen(initializer: Any) -> None:
    made = keras.initializers.get(initializer) if isinstance(initializer, str) else initializer
    assert sharded_initializers.numbers_of(made, (4, 4), "float32") is None


@pytest.mark.parametrize(
    "layout", [("model", None, None), (None, "model", None), ("model", None, "row"), (None, None, "row")]
)
def test_parts_are_cut_from_a_few_rows_at_a_time(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lying, "_BLOCK_ELEMENTS", 5 * math.prod(SHAPE[1:]) + 1)
    mesh = Mesh.parse("batch=2,model=7,row=3")
    whole = np.asarray(INITIALIZERS["glorot_uniform"](SHAPE))
    found = sharded_initializers.numbers_of(INITIALIZERS["glorot_uniform"], SHAPE, "float32")
    assert found is not None
    for rank in (0, 5, 41):
        sharding = MeshLayout(Axes(mesh, rank, {}, lambda _: None), layout, SHAPE, "w")  # type: ignore[arg-type,return-value]
        part = sharding.drawn(found.stretch)
        assert part.shape == sharding.local_shape
        assert np.array_equal(part, sharding.cut(whole))


@pytest.mark.parametrize("name", INITIALIZERS)
def test_parts_of_small_and_of_large_weights_have_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.asarray(INITIALIZERS[name](SHAPE))
    mesh = Mesh.parse("batch=2,model=7,row=3")
    asked: list[Any] = []
    known = sharded_initializers.numbers_of

    def counted(*given: Any) -> Any:
        asked.append(given)
        return known(*given)

    monkeypatch.setattr(sharded_initializers, "numbers_of", counted)
    alone: Any = type("Alone", (), {"broadcast": staticmethod(lambda tensor, what: tensor)})()
    parts = sharded_initializers.InitialParts(alone, lambda what: contextlib.nullcontext())
    for small, calls in ((math.prod(SHAPE), 0), (math.prod(SHAPE) - 1, 2)):
        monkeypatch.setattr(sharded_initializers, "_SMALL", small)
        for rank in (0, 41):
            axes: Any = Axes(mesh, rank, {}, lambda _: None)  # type: ignore[arg-type,return-value]
            layout = MeshLayout(axes, ("model", None, "row"), SHAPE, "w")
            (part,) = parts(None, INITIALIZERS[name], tf.float32, [layout])
            assert np.array_equal(part, layout.cut(whole))
        assert len(asked) == calls
