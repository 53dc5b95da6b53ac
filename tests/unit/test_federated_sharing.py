"""Secret shares and fixed-point numbers: test vectors, exhaustive secrecy, and the limits of a sum."""

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.federated.secure.fixed_point import FixedPoint
from tfdist.federated.secure.shamir import combine, multiply, split


def slow_product(left: int, right: int) -> int:
    """Multiplication in GF(2^8) bit by bit."""
    found = 0
    while right:
        if right & 1:
            found ^= left
        left = (left << 1) ^ (0x11B if left & 0x80 else 0)
        right >>= 1
    return found


def test_products_are_those_of_the_field() -> None:
    everything = np.arange(256, dtype=np.uint8)
    found = multiply(everything[:, None], everything[None, :])
    assert found.tolist() == [[slow_product(a, b) for b in range(256)] for a in range(256)]
    assert slow_product(0x57, 0x83) == 0xC1  # the example of FIPS 197


def test_shares_of_known_polynomials() -> None:
    """The coefficient of x is 0x83, so the share at x is the secret plus 0x83 times x."""
    shares = split(b"\x57\x01", threshold=2, places=[1, 0x57], entropy=lambda count: b"\x83" * count)
    assert shares == {1: bytes([0x57 ^ 0x83, 0x01 ^ 0x83]), 0x57: bytes([0x57 ^ 0xC1, 0x01 ^ 0xC1])}


@given(secret=st.binary(min_size=1, max_size=40), data=st.data())
def test_any_threshold_of_shares_gives_the_secret(secret: bytes, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(1, 255), unique=True, min_size=1, max_size=20))
    threshold = data.draw(st.integers(1, len(places)))
    shares = split(secret, threshold=threshold, places=places)
    chosen = data.draw(st.permutations(places))[:threshold]
    assert combine({place: shares[place] for place in chosen}) == secret


def test_fewer_shares_say_nothing() -> None:
    """Over all polynomials, every pair of shares of three needed comes equally often, whatever the secret is."""
    coefficients = [bytes(pair) for pair in itertools.product(range(256), repeat=2)]
    many = b"".join(pair[:1] for pair in coefficients) + b"".join(pair[1:] for pair in coefficients)
    for secret in (0x00, 0x53, 0xFF):
        shares = split(bytes([secret]) * len(coefficients), threshold=3, places=[2, 7, 9], entropy=lambda count: many)
        seen = Counter(zip(shares[2], shares[7], strict=True))
        assert len(seen) == 256 * 256
        assert set(seen.values()) == {1}


@pytest.mark.parametrize(
    ("threshold", "places"), [(0, [1]), (3, [1, 2]), (1, [0, 1]), (1, [256]), (2, [1, 1]), (1, [])]
)
def test_impossible_sharings_are_refused(threshold: int, places: list[int]) -> None:
    with refused(ConfigError):
        split(b"x", threshold=threshold, places=places)


@pytest.mark.parametrize("bits", [32, 64])
def test_the_largest_sum_is_exact(bits: int) -> None:
    """Each client sends the largest values with the largest weight, and the sum still has its sign."""
    code = FixedPoint(clip=2.0, value_bits=16, largest_weight=(1 << (bits - 16 - 7)) - 1, clients=100, bits=bits)
    values = np.array([2.0, -2.0, 0.0, 1e-9])
    total = np.zeros(4, code.encode(values, 0)[0].dtype)
    for _ in range(100):
        total += code.encode(values, code.largest_weight)[0]
    assert (code.decode(total) / (100 * code.largest_weight)).tolist() == [2.0, -2.0, 0.0, 0.0]


def test_capacity_is_checked_before_the_first_round() -> None:
    with refused(ConfigError, name="value_bits", received=16, mentions=("33 bits", "100 clients")):
        FixedPoint(clip=1.0, value_bits=16, largest_weight=1023, clients=100)
    FixedPoint(clip=1.0, value_bits=16, largest_weight=511, clients=100)
    FixedPoint(clip=1.0, value_bits=16, largest_weight=511, clients=128)
    with refused(ConfigError, name="value_bits"):
        FixedPoint(clip=1.0, value_bits=16, largest_weight=511, clients=129)


def test_rounding_is_to_the_nearest_and_clipping_is_counted() -> None:
    code = FixedPoint(clip=1.0, value_bits=24, largest_weight=3, clients=4, bits=64)
    values = np.random.default_rng(0).normal(size=1000).astype(np.float32)
    words, clipped = code.encode(values, 3)
    assert clipped == int((np.abs(values) > 1).sum()) > 0
    assert np.abs(code.decode(words) / 3 - np.clip(values, -1, 1)).max() <= 0.5 / code.largest * 1.001


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_without_an_integer_are_refused(value: float) -> None:
    with refused(ConfigError, name="values"):
        FixedPoint(clip=1.0, clients=3).encode(np.array([0.0, value]), 1)


def test_weights_beyond_the_largest_are_refused() -> None:
    with refused(ConfigError, name="weight", received=4):
        FixedPoint(clip=1.0, largest_weight=3, clients=3).encode(np.zeros(1), 4)
