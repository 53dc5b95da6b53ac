"""The key of a job: known to its workers and to nobody else, so that no stranger can join what they do together.

A launcher of tfdist draws it and hands it to the workers in their environment, which other users cannot read. It is
never on a command line, in a log, or in what `tfdist run --dry-run` prints.

Source: J.-P. Aumasson, S. Neves, Z. Wilcox-O'Hearn, C. Winnerlein, "BLAKE2: simpler, smaller, fast as MD5", 2013, of
which keys are derived in its keyed mode.
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence

from tfdist.errors import ConfigError

VARIABLE = "TFDIST_JOB_KEY"
_BYTES = 32


def drawn() -> str:
    """Return a new key, in hexadecimal digits.

    Example:
        >>> len(drawn()), drawn() == drawn()
        (64, False)
    """
    return secrets.token_hex(_BYTES)


def from_environment(environ: Mapping[str, str]) -> bytes | None:
    """Return the job's key, or None where no launcher has handed out one.

    Raises:
        ConfigError: the variable is set and no key; its value is not repeated.

    Example:
        >>> from_environment({}) is None, len(from_environment({"TFDIST_JOB_KEY": drawn()}))
        (True, 32)
    """
    text = environ.get(VARIABLE, "")
    if not text:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise ConfigError(
            f"{VARIABLE} has {len(text)} characters that are no key; it must be {2 * _BYTES} hexadecimal digits, the "
            "same on every worker. Unset it, or draw one: python -c 'import secrets; print(secrets.token_hex(32))'"
        )
    return key


def derived(key: bytes, purpose: str, told: Sequence[str]) -> bytes:
    """Return a key for one purpose, which follows from the job's and from what the workers have told each other.

    Who knows only what they told cannot make it, and workers that tell something new have another.

    Args:
        key: of the job.
        purpose: what it is for.
        told: by each worker, in their order.

    Example:
        >>> one, other = (derived(bytes(32), "engine", ["a", last]) for last in ("b", "c"))
        >>> len(one), one == other
        (32, False)
    """
    digest = hashlib.blake2b(key=key, digest_size=_BYTES)
    for part in (purpose, *told):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()
