"""The input of a step: the slices of a batch for this process' replicas, as flat tensors."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import mirrored_extended as tf_strategies


class Layout:
    """How a step's input is laid out: a step is traced once for a layout, whatever the number of examples."""

    def __init__(self, spec: tuple[Any, ...]) -> None:
        self.spec = spec
        self.signature = _specs(spec)
        self.key = repr(spec)

    @classmethod
    def of(cls, slices: tuple[Any, ...]) -> "Layout":
        """Return the layout of slices, in a trace or out of it."""

        def spec(leaf: Any) -> Any:
            return None if leaf is None else tf.type_spec_from_value(leaf)

        return cls(tf.nest.map_structure(spec, slices, expand_composites=False))

    def pack(self, tensors: Sequence[Any], of_replicas: Sequence[int]) -> Any:
        """Return a nest of per-replica values from tensors in the order of `signature`."""
        slices = self.slices(tensors)
        return tf_strategies.per_replica(tuple(slices[index] for index in of_replicas))

    @property
    def is_cut(self) -> bool:
        """Whether there are several slices, each of which may have another number of examples."""
        return len(self.spec) > 1

    def part_signature(self, *, relaxed: bool) -> list[tf.TypeSpec]:
        """Return the specs of one replica's data, without its number of examples."""
        _, data = self.spec[0]
        return [_of_any_rows(spec) for spec in _specs(data)] if relaxed else _specs(data)

    def part(self, tensors: Sequence[Any]) -> Any:
        """Return one replica's data from tensors in the order of `part_signature`."""
        _, data = self.spec[0]
        return _packed(data, tensors)

    def parts(self, tensors: Sequence[Any]) -> list[tuple[tf.Tensor, list[Any]]]:
        """Return each local replica's number of examples and its data, flat, from what `signature` describes."""
        return [(rows, list(flat((data,)))) for rows, data in self.slices(tensors)]

    def slices(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Return a nest per local replica from tensors in the order of `signature`."""
        return tuple(_packed(self.spec, tensors))


def _specs(nest: Any) -> list[tf.TypeSpec]:
    return [leaf for leaf in tf.nest.flatten(nest) if isinstance(leaf, tf.TypeSpec)]


def _packed(nest: Any, tensors: Sequence[Any]) -> Any:
    """Return the nest with tensors in the place of its specs, in order."""
    given = iter(tensors)
    leaves = [next(given) if isinstance(leaf, tf.TypeSpec) else None for leaf in tf.nest.flatten(nest)]
    return tf.nest.pack_sequence_as(nest, leaves)


def flat(slices: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the tensors of a step's input, without structure and without "no value"."""
    return tuple(leaf for leaf in tf.nest.flatten(slices, expand_composites=False) if leaf is not None)


def _of_any_rows(spec: tf.TypeSpec) -> tf.TypeSpec:
    if isinstance(spec, tf.TensorSpec) and spec.shape.rank:
        return tf.TensorSpec([None, *spec.shape[1:]], spec.dtype)
    return spec
