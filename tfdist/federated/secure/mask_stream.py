"""Masks: the keystream of ChaCha20 as words of 32 or 64 bits, added to a vector or subtracted from it modulo 2^bits.

A key has 256 bits and is used for only one mask, which is why counter and nonce start at zero. Blocks are small enough
for the processor's cache, so that a mask costs one pass over the vector and no memory.

Sources: RFC 8439 (ChaCha20), RFC 7748 (X25519), RFC 5869 (HKDF).
"""

from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

KEY_BYTES = 32
_START = bytes(16)  # a counter and a nonce of zero
_BLOCK_BYTES = 1 << 18
_ZEROS = memoryview(bytes(_BLOCK_BYTES))

Words = NDArray[np.unsignedinteger]


def word_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of words that wrap modulo 2^bits; little-endian, as they travel."""
    return np.dtype({32: "<u4", 64: "<u8"}[bits])


def derived_key(secret: bytes, purpose: bytes) -> bytes:
    """Return a key for one purpose, derived from a shared or random secret."""
    return HKDF(algorithm=hashes.SHA256(), length=KEY_BYTES, salt=None, info=purpose).derive(secret)


def agreed_secret(private: bytes, public: bytes) -> bytes:
    """Return the secret that two clients share by X25519; raise ValueError if the public key would reveal it to all."""
    return X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))


def public_key(private: bytes) -> bytes:
    """Return the public key of a private one."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def apply_masks(words: Words, *, added: Iterable[bytes] = (), removed: Iterable[bytes] = ()) -> None:
    """Add the masks of some keys to ``words`` and subtract those of others, in place."""
    for key in added:
        _apply(words, key, np.add)
    for key in removed:
        _apply(words, key, np.subtract)


def _apply(words: Words, key: bytes, operation: np.ufunc) -> None:
    stream = Cipher(algorithms.ChaCha20(key, _START), mode=None).encryptor()
    buffer = bytearray(min(_BLOCK_BYTES, words.nbytes))
    mask = np.frombuffer(buffer, words.dtype)
    step = len(mask)
    for start in range(0, len(words), step or 1):
        block = words[start : start + step]
        stream.update_into(_ZEROS[: block.nbytes], buffer)
        operation(block, mask[: len(block)], out=block)
