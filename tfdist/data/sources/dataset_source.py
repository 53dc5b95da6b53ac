"""A `tf.data.Dataset` as a source, read in batches where its shapes allow it."""

from collections.abc import Iterator, Mapping
from itertools import chain, pairwise
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.format.schema import DTYPES, TEXT, Feature, Schema
from tfdist.data.sources.protocol import BLOCK_EXAMPLES, Block, bytes_per_example, examples_per_block, length
from tfdist.data.sources.stored_columns import column, named
from tfdist.data.sources.stream import Stream
from tfdist.errors import ConfigError, ConfigTypeError

_BATCH_OF_UNKNOWN = 128  # examples, where text or lists may have any size
_FIX = "Change it with dataset.map(...) first."


def open_dataset(dataset: Any, schema: Schema | None) -> "Batched | Stream":
    if not isinstance(dataset, tf.data.Dataset):
        raise ConfigTypeError(
            f"source is {validation.shown(dataset)} ({type(dataset).__name__}); it must be a tf.data.Dataset that is "
            "not distributed yet. Pass the one that it was made from."
        )
    count = int(dataset.cardinality())
    if count == tf.data.INFINITE_CARDINALITY:
        raise ConfigError(
            "the dataset never ends; pass dataset.take(n), or leave out its repeat().", name="dataset", received=dataset
        )
    if count == 0:
        raise ConfigError("the dataset has no elements; at least one is needed.")
    specs = _specs(dataset.element_spec)
    if all(_is_known(spec) for spec in specs.values()):
        found = schema or Schema({name: _feature(name, spec, spec.shape) for name, spec in specs.items()})
        _same_names(found, specs)
        return Batched(dataset, found, None if count < 0 else count)
    iterator = map(_named, dataset.as_numpy_iterator())
    first = next(iterator, None)
    if first is None:
        raise ConfigError("the dataset has no elements; at least one is needed.")
    found = schema or Schema({name: _feature(name, spec, np.shape(first[name])) for name, spec in specs.items()})
    _same_names(found, specs)
    stream = Stream(found, chain([first], iterator), lambda: map(_named, dataset.as_numpy_iterator()))
    stream.count, stream.identity = None if count < 0 else count, _identity(dataset, count)
    return stream


class Batched:
    seekable = False
    identifies = False
    sizes: NDArray[np.int64] | None = None

    def __init__(self, dataset: Any, schema: Schema, count: int | None) -> None:
        self._dataset, self.schema, self.count = dataset, schema, count
        self.identity = _identity(dataset, count)

    def blocks(self, start: int, stop: int | None) -> Iterator[Block]:
        """Yield blocks; elements before ``start`` are computed and dropped."""
        if stop is not None and stop <= start:
            return
        specs = _specs(self._dataset.element_spec)
        dataset = self._dataset.skip(start) if start else self._dataset
        dataset = dataset if stop is None else dataset.take(stop - start)
        has_fixed_size = all(spec.dtype != tf.string and spec.shape.is_fully_defined() for spec in specs.values())
        rows = examples_per_block(bytes_per_example(self.schema), BLOCK_EXAMPLES)
        rows = rows if has_fixed_size else min(rows, _BATCH_OF_UNKNOWN)
        at = start
        is_dense = all(spec.shape.is_fully_defined() for spec in specs.values())
        for element in dataset.batch(rows) if is_dense else dataset.ragged_batch(rows):
            batch = {name: _values(tensor) for name, tensor in _named(element).items()}
            yield {name: column(name, feature, batch[name], at) for name, feature in self.schema.items()}
            at += length(batch)
        if at == 0 and stop != 0:
            raise ConfigError("the dataset has no elements; at least one is needed.")


def _named(element: Any) -> dict[str, Any]:
    """Return an element with names; the names of tensorflow-io's Parquet datasets are bytes."""
    names: Mapping[Any, Any] = named(element)
    return {name.decode() if isinstance(name, bytes) else name: value for name, value in names.items()}


def _values(tensor: Any) -> Any:
    """Return a batched tensor as a NumPy array, a ragged one as a list of arrays."""
    if not isinstance(tensor, tf.RaggedTensor):
        return tensor.numpy()
    flat, ends = tensor.flat_values.numpy(), tensor.row_splits.numpy().tolist()
    return [flat[begin:end] for begin, end in pairwise(ends)]


def _specs(element: Any) -> dict[str, Any]:
    found = _named(element)
    for name, spec in found.items():
        if isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank == 0:
            found[name] = tf.TensorSpec(spec.shape, spec.dtype)
        elif isinstance(spec, tf.RaggedTensorSpec):
            raise ConfigError(
                f"feature {name!r} of the dataset is a RaggedTensor; store its flat_values and its row_splits as two "
                f"features, or pad it with to_tensor(). {_FIX}",
                name=name,
                received="RaggedTensor",
            )
        elif isinstance(spec, tf.SparseTensorSpec):
            raise ConfigError(
                f"feature {name!r} of the dataset is a SparseTensor; make it dense with tf.sparse.to_dense(), or store "
                f"its indices and values as two features. {_FIX}",
                name=name,
                received="SparseTensor",
            )
        elif not isinstance(spec, tf.TensorSpec):
            raise ConfigError(
                f"feature {name!r} of the dataset is {validation.shown(spec)}; it must be a tensor. Give each tensor "
                f"in it a name of its own. {_FIX}",
                name=name,
                received=validation.shown(spec),
            )
    return found


def _is_known(spec: Any) -> bool:
    """Return whether elements can be batched: every dimension is known, or there is only one."""
    return bool(spec.shape.rank is not None and (spec.shape.is_fully_defined() or spec.shape.rank == 1))


def _feature(name: str, spec: Any, shape: Any) -> Feature:
    dtype = TEXT if spec.dtype == tf.string else spec.dtype.name
    if dtype not in DTYPES:
        raise ConfigError(
            f"feature {name!r} of the dataset is {dtype}; it must be one of {', '.join(DTYPES)}. {_FIX}",
            name=name,
            received=dtype,
        )
    is_list = spec.shape.rank == 1 and not spec.shape.is_fully_defined()
    return Feature(dtype, (None,) if is_list else tuple(int(size) for size in shape))


def _same_names(schema: Schema, specs: Mapping[str, Any]) -> None:
    if schema.keys() != specs.keys():
        raise ConfigError(
            f"the dataset has the features {', '.join(map(repr, specs))}; the schema has "
            f"{', '.join(map(repr, schema))}. Both must have the same names. {_FIX}",
            name="schema",
            received=", ".join(map(repr, schema)),
        )


def _identity(dataset: Any, count: int | None) -> dict[str, Any]:
    return {"kind": "dataset", "element": str(dataset.element_spec), "count": count}
