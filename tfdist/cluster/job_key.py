"""The secret key of a job, without which no process can join it.

A launcher of tfdist draws it and passes it in the workers' environment, which other users cannot read. It is in no
command line, log, or output of `tfdist run --dry-run`.

Source: J.-P. Aumasson, S. Neves, Z. Wilcox-O'Hearn, C. Winnerlein, "BLAKE2: simpler, smaller, fast as MD5", 2013; keys
are derived in its keyed mode.
"""

import hashlib
import os
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.variables import JOB_KEY

_BYTES = 32


def drawn() -> str:
    """Return a new key, in hexadecimal digits."""
    return secrets.token_hex(_BYTES)


def from_environment(environ: Mapping[str, str]) -> bytes | None:
    """Return the job's key; None if no launcher has set one."""
    text = JOB_KEY.read(environ)
    if not text:
        return None
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _BYTES:
        raise ConfigError(
            f"{JOB_KEY.name} has {len(text)} characters that are no key; it must be {2 * _BYTES} hexadecimal digits, "
            "the same on every worker. Unset it, or draw one: python -c 'import secrets; print(secrets.token_hex(32))'",
            name=JOB_KEY.name,
        )
    return key


def from_file(path: Path, *, make: bool = False) -> bytes:
    """Return the key in a private file, which is written before if it is missing and ``make`` is True."""
    if make and not path.exists():
        _make(path)
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError as error:
        raise ConfigError(
            f"the key file {path} cannot be read ({error.strerror}). It is the one that `tfdist run --key-file` has "
            "written; copy it to this host."
        ) from error
    if mode & 0o077:
        raise ConfigError(
            f"the key file {path} may be read by others. Remove it; `tfdist run --key-file {path}` writes another."
        )
    key = from_environment({JOB_KEY.name: text})
    if key is None:
        raise ConfigError(f"the key file {path} is empty. Remove it; `tfdist run --key-file {path}` writes another.")
    return key


def _make(path: Path) -> None:
    """Write a new key, unless another process does; hosts that read meanwhile find no file, or the whole key."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "x", opener=_private, encoding="ascii") as file:
            file.write(f"{drawn()}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        except OSError:  # a file system without hard links
            if not path.exists():
                os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def derived(key: bytes, purpose: str, told: Sequence[str]) -> bytes:
    """Return a key for one purpose, derived from the job's key and from values that the workers have exchanged.

    Knowing the exchanged values alone is not enough, and new values give another key.
    """
    digest = hashlib.blake2b(key=key, digest_size=_BYTES)
    for part in (purpose, *told):
        encoded = part.encode()
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.digest()
