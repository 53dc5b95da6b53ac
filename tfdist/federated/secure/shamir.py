"""Shamir's secret sharing of byte strings: any `threshold` shares give the secret, and fewer reveal nothing about it.

Each byte is shared by itself over GF(2^8) with the polynomial x^8 + x^4 + x^3 + x + 1, the field of AES. A share is as
long as the secret. Its place, 1 to 255, is the point at which it was computed, so at most 255 can hold a share.

Source: A. Shamir, "How to Share a Secret", 1979.

Example:
    >>> shares = split(b"secret", threshold=2, places=[1, 2, 3])
    >>> combine({1: shares[1], 3: shares[3]})
    b'secret'
"""

import os
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tfdist.errors import ConfigError

MOST_PLACES = 255  # the elements of the field without 0, at which the secret itself is

_Bytes = NDArray[np.uint8]


def _tables() -> tuple[_Bytes, NDArray[np.int64]]:
    """Return powers of the generator 3, twice so that a sum of two logarithms needs no reduction, and logarithms."""
    powers, logarithms = np.zeros(510, np.uint8), np.zeros(256, np.int64)
    value = 1
    for exponent in range(255):
        powers[exponent] = powers[exponent + 255] = value
        logarithms[value] = exponent
        doubled = (value << 1) ^ (0x11B if value & 0x80 else 0)
        value = doubled ^ value
    return powers, logarithms


_POWERS, _LOGARITHMS = _tables()


def multiply(left: _Bytes, right: _Bytes) -> _Bytes:
    """Return the products in GF(2^8), element by element."""
    products = _POWERS[_LOGARITHMS[left] + _LOGARITHMS[right]]
    return np.where((left == 0) | (right == 0), np.uint8(0), products)


def split(
    secret: bytes, *, threshold: int, places: Sequence[int], entropy: Callable[[int], bytes] = os.urandom
) -> dict[int, bytes]:
    """Return one share of the secret for each place; any ``threshold`` of them recover it."""
    if not 1 <= threshold <= len(places) or len(set(places)) < len(places):
        raise ConfigError(
            f"threshold is {threshold} for {len(places)} places; it must be from 1 to the number of unlike places.",
            name="threshold",
            received=threshold,
        )
    if not all(1 <= place <= MOST_PLACES for place in places):
        raise ConfigError(
            f"places run from {min(places)} to {max(places)}; a share has a place from 1 to {MOST_PLACES}. Let fewer "
            "hold shares.",
            name="places",
            received=list(places),
        )
    points = np.array(places, np.uint8)[:, None]
    random = np.frombuffer(entropy((threshold - 1) * len(secret)), np.uint8).reshape(threshold - 1, len(secret))
    values = np.zeros((len(places), len(secret)), np.uint8)
    for coefficients in (*random, np.frombuffer(secret, np.uint8)):  # the highest power first, the secret last
        values = multiply(values, points) ^ coefficients
    return {place: row.tobytes() for place, row in zip(places, values, strict=True)}


def combine(shares: Mapping[int, bytes]) -> bytes:
    """Return the secret that these shares determine, by place. Too few or wrong ones give other bytes, no error."""
    points = np.array(list(shares), np.uint8)
    values = np.stack([np.frombuffer(share, np.uint8) for share in shares.values()])
    weights = _at_zero(points)
    return bytes(np.bitwise_xor.reduce(multiply(values, weights[:, None]), axis=0).tobytes())


def _at_zero(points: _Bytes) -> _Bytes:
    """Return Lagrange's weights: the product of other / (other - own) over all other points."""
    exponents = np.zeros(len(points), np.int64)
    for other in points:
        differs = points != other
        exponents += np.where(differs, _LOGARITHMS[other] - _LOGARITHMS[points ^ other], 0)
    return np.asarray(_POWERS[exponents % 255])
