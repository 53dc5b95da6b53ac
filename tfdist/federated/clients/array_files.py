"""Named arrays in files that are either whole or absent."""

import hashlib
from pathlib import Path
from urllib.parse import quote

import numpy as np

from tfdist.checkpoint import safetensors_file
from tfdist.errors import CorruptDataError
from tfdist.federated.client_update import Arrays
from tfdist.storage.directory import storage

_LONGEST = 120  # characters of a client's name in that of a file, which has more


def name_of(client: str) -> str:
    """Return the name of a client's folder or file: the client's name as in URLs, or its beginning and a hash.

    No two clients get the same name: names with a hash are longer than all others.

    Example:
        >>> name_of("Köln/1"), name_of("é" * 100)[:30], len(name_of("é" * 100))
        ('client-K%C3%B6ln%2F1', 'client-%C3%A9%C3%A9%C3%A9%C3%A', 146)
    """
    text = quote(client, safe="")
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - 14]}-{hashlib.sha256(client.encode()).hexdigest()[:32]}"
    return f"client-{text}"


def save(path: Path, arrays: Arrays, *, durable: bool) -> None:
    """Write the file; if it is not durable, it may be lost in a power failure, but not when the process is killed."""
    with storage(path.parent, durable=durable).create(path.name) as file:
        safetensors_file.write(file, safetensors_file.as_arrays(arrays))


def load(path: Path) -> Arrays:
    try:
        return safetensors_file.read(np.frombuffer(path.read_bytes(), np.uint8))
    except CorruptDataError as error:
        raise CorruptDataError(f"{path} cannot be read: {error}", path=path) from error
