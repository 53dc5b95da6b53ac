"""Batches whose parts are copied into the memory of the replicas' devices before their steps begin.

TensorFlow's own distributed iterators do this with `OwnedMultiDeviceIterator`. Its thread hands the elements of a
dataset to several devices in turn, each with a queue of its own. So a batch is divided into one element for the host
and one for each device. Tensors that kernels read from the host's memory stay there (`_ON_HOST`): numbers of examples,
int32 and text. They would be copied back, and each copy back waits for all computations of the device.

The host's element comes first. TensorFlow hands an error to the queue whose turn it is, and continues with the next
element. So code that reads the host's queue first never joins parts of two batches.

Private names, read in TensorFlow 2.21.0: `OwnedMultiDeviceIterator`, `_device_iterators`, its iterator of each device,
and what `tf_data` explains. `tf.__internal__.CompositeTensor` lets a function take such an iterator.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import tensorflow as tf
from tensorflow.python.data.ops.multi_device_iterator_ops import MultiDeviceIteratorSpec, OwnedMultiDeviceIterator

from tfdist.compat.tensorflow import tf_data

_HOST_DEVICE = "/device:CPU:0"
_ON_HOST = (tf.int32, tf.string, tf.resource, tf.variant)
_NOWHERE = -1


class Ahead(NamedTuple):
    """The devices that hold parts of batches ahead of their steps, and the number of these batches."""

    devices: tuple[str, ...]  # the device of each part
    batches: int


class Division(NamedTuple):
    """The number of the device for each tensor of an element; -1 for a tensor that stays on the host.

    All devices have the same number of tensors, with the same types in the same order.
    """

    specs: tuple[tf.TensorSpec, ...]
    places: tuple[int, ...]

    @classmethod
    def of(cls, host: Sequence[tf.TypeSpec], parts: Sequence[Sequence[tf.TypeSpec]]) -> "Division | None":
        """Divide an element that has the tensors for the host first, and then those of each part.

        Return None if no tensor travels, or if a tensor is ragged, sparse or of unknown rank.
        """
        specs = (*host, *(spec for part in parts for spec in part))
        if not all(isinstance(spec, tf.TensorSpec) and spec.shape.rank is not None for spec in specs):
            return None
        places = (
            *(_NOWHERE for _ in host),
            *(number if _travels(spec) else _NOWHERE for number, part in enumerate(parts) for spec in part),
        )
        return None if all(place == _NOWHERE for place in places) else cls(specs, places)

    def elements(self, tensors: Sequence[Any], devices: int) -> list[tuple[Any, ...]]:
        """Return the elements of the host and of each device: all of one structure, with placeholders for the rest."""
        on_host = self._at(_NOWHERE, tensors)
        like = self._at(0, self.specs)
        no_host = [_nothing(spec) for spec in self._at(_NOWHERE, self.specs)]
        host = (*on_host, *map(_nothing, like))
        return [host, *((*no_host, *self._at(device, tensors)) for device in range(devices))]

    def joined(self, elements: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
        """Return the tensors of a batch, given the elements of the host and of each device."""
        of_host = self.places.count(_NOWHERE)
        left = {_NOWHERE: iter(elements[0][:of_host])}
        left |= {device: iter(element[of_host:]) for device, element in enumerate(elements[1:])}
        found = tuple(next(left[place]) for place in self.places)
        for tensor, spec in zip(found, self.specs, strict=True):
            if tf.is_symbolic_tensor(tensor):
                tensor.set_shape(spec.shape)
        return found

    def _at(self, place: int, values: Sequence[Any]) -> list[Any]:
        return [value for value, its in zip(values, self.places, strict=True) if its == place]


def _travels(spec: tf.TensorSpec) -> bool:
    return bool(spec.shape.rank) and spec.dtype not in _ON_HOST


def _nothing(spec: tf.TensorSpec) -> Any:
    """Return a placeholder, without bytes if possible, for a tensor of this spec that the device does not have."""
    shape = [0, *(0 if size is None else size for size in spec.shape[1:])] if spec.shape.rank else []
    return tf.fill(shape, "") if spec.dtype == tf.string else tf.zeros(shape, spec.dtype)


class DeviceIterator(tf.__internal__.CompositeTensor, tf_data.Released):
    """An iterator over batches that copies the next ones into the memory of devices; see `iterator`."""

    def __init__(
        self, shards: Any, division: Division, devices: tuple[str, ...], find: Callable[[str], Exception | None]
    ) -> None:
        self._shards = shards
        self._division = division
        self._devices = devices
        self._find = find
        self._error: tf.errors.OpError | None = None

    def __iter__(self) -> "DeviceIterator":
        return self

    def __next__(self) -> Any:
        if self._shards is None:
            raise StopIteration
        with tf_data.raising(self._find):
            if self._error is not None:
                raise self._error  # after an error the queues of devices may be at different batches
            try:
                return self._division.joined([self._taken(number) for number in range(1 + len(self._devices))])
            except tf.errors.OutOfRangeError:
                raise StopIteration from None
            except tf.errors.OpError as error:
                self._error = error
                raise

    def get_next_as_optional(self) -> Any:
        """Return the host's tensors of the next batch as an optional in a graph; `value_of` adds those of devices."""
        with tf.device(_HOST_DEVICE):
            return self._shards._device_iterators[0].get_next_as_optional()

    def value_of(self, batch: Any) -> tuple[Any, ...]:
        host = batch.get_value()
        return self._division.joined([host, *(self._taken(1 + number) for number in range(len(self._devices)))])

    def release(self) -> None:
        """End the iterator: queues are freed with their last reference."""
        self._shards = None

    def _taken(self, number: int) -> Sequence[Any]:
        one = self._shards._device_iterators[number]
        with tf.device((_HOST_DEVICE, *self._devices)[number]):
            return tf.raw_ops.IteratorGetNext(
                iterator=one._iterator_resource,
                output_types=one._flat_output_types,
                output_shapes=one._flat_output_shapes,
            )

    @property
    def _type_spec(self) -> "_DeviceIteratorSpec":
        return _DeviceIteratorSpec(self._shards._type_spec, *self._division, self._devices)


class _DeviceIteratorSpec(tf.TypeSpec):
    def __init__(
        self,
        shards: MultiDeviceIteratorSpec,
        specs: tuple[tf.TensorSpec, ...],
        places: tuple[int, ...],
        devices: tuple[str, ...],
    ) -> None:
        self._shards, self._division, self._devices = shards, Division(specs, places), devices

    @property
    def value_type(self) -> type:
        return DeviceIterator

    @property
    def _component_specs(self) -> Any:
        return self._shards

    def _to_components(self, value: DeviceIterator) -> Any:
        return value._shards

    def _from_components(self, components: Any) -> DeviceIterator:
        return DeviceIterator(components, self._division, self._devices, lambda text: None)

    def _serialize(self) -> tuple[Any, ...]:
        return self._shards, *self._division, self._devices


def iterator(
    dataset: tf.data.Dataset, division: Division, ahead: Ahead, find: Callable[[str], Exception | None]
) -> DeviceIterator:
    """Return an iterator over a dataset of flat elements that copies the next ones ahead; ``find`` as in `tf_data`."""
    count = len(ahead.devices)

    @tf.autograph.experimental.do_not_convert
    def divided(*tensors: Any) -> tf.data.Dataset:
        elements = map(tf.data.Dataset.from_tensors, division.elements(tensors, count))
        return functools.reduce(lambda before, after: before.concatenate(after), elements)

    shards = OwnedMultiDeviceIterator(
        dataset.flat_map(divided),
        devices=[_HOST_DEVICE, *ahead.devices],
        max_buffer_size=ahead.batches,
        prefetch_buffer_size=ahead.batches,
        source_device=_HOST_DEVICE,
    )
    return DeviceIterator(shards, division, ahead.devices, find)


def value_of(elements: Any, batch: Any) -> tuple[Any, ...]:
    """Return the tensors of a batch in a graph, given the optional that an iterator of any kind has returned."""
    return elements.value_of(batch) if isinstance(elements, DeviceIterator) else batch.get_value()
