"""The data of clients: arrays, datasets, or directories of `tfdist.data`, by the names of clients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.fetch import Fetcher, source_of
from tfdist.data.format.schema import FIXED
from tfdist.data.reading.element_roles import roles
from tfdist.data.reading.reader import read
from tfdist.data.reading.view import open_directory
from tfdist.errors import ConfigError, ConfigTypeError

ClientData = Callable[[str], Any] | Mapping[str, Any] | Sequence[Any] | str | Path
LONGEST_NAME = 100
_IN_MEMORY_BYTES = 64 << 20  # of a directory of numbers, which a client then has as arrays


@dataclass(frozen=True)
class LocalArrays:
    """A client's examples in memory: the arguments of `fit` as one nest, whose arrays have a row per example."""

    nest: Any
    examples: int


@dataclass(frozen=True)
class LocalDataset:
    """A client's examples as batches; ``make`` returns the batches of a training, given batch size and seed."""

    make: Callable[[int | None, int], Any]
    examples: int


Local = LocalArrays | LocalDataset


def names_of(client_data: ClientData, clients: Sequence[str] | int | None) -> tuple[str, ...]:
    """Return the names of all clients: as given, or as in the data."""
    if isinstance(clients, int):
        return tuple(map(str, range(validation.integer("clients", clients, minimum=1))))
    if clients is not None:
        found = tuple(clients)
    elif isinstance(client_data, Mapping):
        found = tuple(client_data)
    elif isinstance(client_data, str | Path):
        folder = Path(client_data)
        folders = [one for one in folder.iterdir() if one.is_dir()] if folder.is_dir() else []
        found = tuple(sorted(one.name for one in folders if not one.name.startswith(".")))
    elif isinstance(client_data, Sequence):
        found = tuple(map(str, range(len(client_data))))
    else:
        raise ConfigError(
            "client_data is a function, which does not say what clients there are. Pass clients, their names or their "
            "number, to App; or --clients.",
            name="clients",
            received=None,
        )
    if not found:
        raise ConfigError("there are no clients: client_data is empty.", name="client_data", received=str(client_data))
    for name in found:
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            raise ConfigTypeError(
                f"a client's name is {name!r}; it must be a text of 1 to {LONGEST_NAME} characters.",
                name="clients",
                received=name,
            )
    if len(set(found)) != len(found):
        raise ConfigError("two clients have the same name; each needs its own.", name="clients", received=found)
    return found


def data_of(client_data: ClientData, client: str) -> Local:
    if isinstance(client_data, str | Path):
        return local_data(Path(client_data) / client, client)
    if callable(client_data):
        return local_data(client_data(client), client)
    try:
        found = client_data[client] if isinstance(client_data, Mapping) else client_data[int(client)]
    except (KeyError, ValueError, IndexError):
        raise ConfigError(f"client_data has no client {client!r}.", name="clients", received=client) from None
    return local_data(found, client)


def local_data(found: Any, client: str) -> Local:
    """Return a client's data: a path is read as a directory of `tfdist.data`, batches as a dataset, the rest as arrays.

    A small directory of numbers is read into arrays.
    """
    if isinstance(found, str | Path):
        examples = open_directory(found)
        if examples.manifest.layout == FIXED and examples.manifest.total_bytes <= _IN_MEMORY_BYTES:
            return LocalArrays(_columns(examples), len(examples))
        return LocalDataset(
            lambda batch_size, seed: read(found, global_batch_size=batch_size or len(examples), seed=seed, tail="keep"),
            len(examples),
        )
    if isinstance(found, tf.data.Dataset):
        return LocalDataset(lambda batch_size, seed: found, _counted(found, client))
    if not isinstance(found, tuple) or not found:
        raise ConfigTypeError(
            f"the data of client {client!r} are {validation.shown(found)}; they must be a tuple of arrays (x, y) or "
            "(x, y, sample_weight), a tf.data.Dataset of batches, or the path of a directory of tfdist.data.",
            name="client_data",
            received=type(found).__name__,
        )
    nest = keras.tree.map_structure(np.asarray, found)
    shapes = [array.shape for array in keras.tree.flatten(nest)]
    rows = {shape[:1] for shape in shapes}
    if len(rows) != 1 or rows == {()} or rows == {(0,)}:
        raise ConfigError(
            f"the arrays of client {client!r} have the shapes {shapes}; "
            "each must have the same number of rows, at least 1.",
            name="client_data",
            received=client,
        )
    return LocalArrays(nest, int(next(iter(rows))[0]))


def _columns(examples: Examples) -> Any:
    """Return a small directory as one batch, as `tfdist.data.read` does; a pipeline per training takes a second."""
    fetch = Fetcher(examples, source_of(examples), verify="always", skip=False)
    found, _ = fetch(np.arange(len(examples)))
    element = roles(examples.manifest.label, (), None, origin="the examples have").element(found, None)
    return element if isinstance(element, tuple) else (element,)


def _counted(dataset: tf.data.Dataset, client: str) -> int:
    """Return the number of rows in a dataset's batches, which are read once for it."""
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ConfigError(
            f"the dataset of client {client!r} has no end, so its examples cannot be counted. Leave repeat() out; "
            "epochs of the algorithm repeats it.",
            name="client_data",
            received=client,
        )
    rows = sum(int(keras.tree.flatten(batch)[0].shape[0]) for batch in dataset)
    if not rows:
        raise ConfigError(
            f"the dataset of client {client!r} has no examples; at least 1 is needed. Leave the client out.",
            name="client_data",
            received=client,
        )
    return rows
