"""Named arrays in files that are whole or not there."""

from pathlib import Path

import numpy as np

from tfdist.checkpoint import safetensors_file
from tfdist.errors import CorruptDataError
from tfdist.federated.client_update import Arrays
from tfdist.storage.directory import storage


def save(path: Path, arrays: Arrays, *, durable: bool) -> None:
    """Write the file; what is not durable may be lost with the power, but not with the process."""
    with storage(path.parent, durable=durable).create(path.name) as file:
        safetensors_file.write(file, safetensors_file.as_arrays(arrays))


def load(path: Path) -> Arrays:
    try:
        return safetensors_file.read(np.frombuffer(path.read_bytes(), np.uint8))
    except CorruptDataError as error:
        raise CorruptDataError(f"{path} cannot be read: {error}", path=path) from error
