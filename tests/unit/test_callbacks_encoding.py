"""The state of callbacks as JSON and arrays, and back: the same values, of the same types, in the same order."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.callbacks.backup.encoding import decode, encode
from tfdist.errors import ConfigTypeError

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.floats(width=32).map(np.float32)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(), st.integers()), inner, max_size=4),
    ),
    max_leaves=12,
)


def there_and_back(value: Any) -> Any:
    arrays: dict[str, Any] = {}
    text = json.dumps(encode(value, arrays, "it"), sort_keys=True)
    return decode(json.loads(text), arrays)


@given(VALUES)
def test_what_goes_in_comes_out(value: Any) -> None:
    found = there_and_back(value)
    assert repr(found) == repr(value)  # also types, and the order of dicts


@pytest.mark.parametrize("dtype", ["float16", "float32", "int64", "bool", "uint8"])
def test_arrays_keep_shape_and_dtype(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    found = there_and_back({"best": [array, array[0]], "n": np.int16(3), "half": ml_dtypes.bfloat16(1.5)})
    np.testing.assert_array_equal(found["best"][0], array)
    assert found["best"][0].dtype == array.dtype
    assert found["best"][1].shape == (3,)
    assert isinstance(found["n"], np.int16)
    assert isinstance(found["half"], ml_dtypes.bfloat16)


def test_an_array_that_changes_later_is_kept_as_it_was() -> None:
    arrays: dict[str, Any] = {}
    array = np.zeros(2)
    kept = encode([array], arrays, "it")
    array[:] = 1
    assert decode(kept, arrays)[0].tolist() == [0, 0]


@pytest.mark.parametrize("value", [object(), {1, 2}, [b"bytes"], {"a": lambda: None}, np.array(["text"]), 1j])
def test_what_cannot_be_kept_is_named(value: Any) -> None:
    with refused(ConfigTypeError) as caught:
        encode({"state": value}, {}, "callback/3")
    where = caught.value.name
    assert where is not None
    assert where.startswith("callback/3/state")
