"""Named arrays in files that are whole or not there."""

import os
from pathlib import Path

import numpy as np

from tfdist.checkpoint import safetensors_file
from tfdist.errors import CorruptDataError
from tfdist.federated.client_update import Arrays


def save(path: Path, arrays: Arrays) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        safetensors_file.write(file, safetensors_file.as_arrays(arrays))
    temporary.replace(path)


def load(path: Path) -> Arrays:
    try:
        return safetensors_file.read(np.frombuffer(path.read_bytes(), np.uint8))
    except CorruptDataError as error:
        raise CorruptDataError(f"{path} cannot be read: {error}", path=path) from error
