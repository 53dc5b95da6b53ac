"""Helpers for tf.data: sharding by files, elements without a value, iterators that raise causes, and their end.

Private names, read in TensorFlow 2.21.0: `auto_shard_dataset`, which shards a pipeline's files, since `Dataset.shard`
cannot reach them; `_dataset`, the source of an iterator; `_UnbatchDataset`, which is `unbatch` without a function that
makes all tensors dense; `_functions`, the functions of a dataset. `OwnedIterator` makes and deletes an executor for
each eager element. The remote call of another thread walks all executors, and may find the deleted one. TensorFlow then
ends the process ("Mutex corrupt"). So the operation is called without an executor, in two thirds of the time
(`_iterator_resource`, `_flat_output_types`, `_flat_output_shapes`, `_element_spec`, `structure`).

A dataset that calls Python (`from_generator`, `py_function`) and works ahead has a thread that waits for the call.
TensorFlow frees an iterator with its last reference, and joins that thread. At the interpreter's end that deadlocks,
because no other thread gets Python's lock. So iterators are ended earlier, in a thread without the lock. The thread
frees an iterator or, if it is still referenced, gives it an empty dataset by `MakeIterator`.
"""

import contextlib
import functools
import gc
import logging
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset
from tensorflow.python.data.ops.iterator_ops import OwnedIterator
from tensorflow.python.data.ops.unbatch_op import _UnbatchDataset
from tensorflow.python.data.util import structure

from tfdist.compat import dry_run

_REFERENCES = 2  # the count of `sys.getrefcount` for an object that only one local variable refers to


def shard_by_files(dataset: tf.data.Dataset, workers: int, index: int) -> tf.data.Dataset:
    """Return the dataset, restricted to every ``workers``-th file."""
    return _AutoShardDataset(dataset, workers, index, num_replicas=None)


def unbatched(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the rows of elements of dense tensors; each epoch prepares one function less than with `unbatch`."""
    return _UnbatchDataset(dataset)


def without_nones(spec: Any) -> Any:
    """Return an element spec with None in place of tf.data's spec for None and of Keras' empty optional."""
    return tf.nest.map_structure(lambda s: None if _is_none(s) or isinstance(s, tf.OptionalSpec) else s, spec)


def _is_none(spec: Any) -> bool:
    return spec is None or type(spec).__name__ == "NoneTensorSpec"


def none_for_optionals(data: Any) -> Any:
    """Return an element with None in place of the empty optionals by which Keras marks a missing value."""
    return tf.nest.map_structure(
        lambda v: None if isinstance(v, tf.experimental.Optional) else v, data, expand_composites=False
    )


def one_row(spec: Any) -> Any:
    """Return an element of this spec whose tensors have one row of zeros; unknown inner dimensions become 1."""

    def value(leaf: Any) -> Any:
        if _is_none(leaf):
            return None
        shape = [1 if dim is None else dim for dim in leaf.shape]
        dense = tf.zeros(shape, leaf.dtype)  # also texts and booleans
        if isinstance(leaf, tf.RaggedTensorSpec):
            return tf.RaggedTensor.from_tensor(dense, ragged_rank=leaf.ragged_rank)
        return tf.sparse.from_dense(dense) if isinstance(leaf, tf.SparseTensorSpec) else dense

    return tf.nest.map_structure(value, spec, expand_composites=False)


def joined(*rows: Any) -> Any:
    """Return the rows of several tensors of one kind as one tensor; scalars are stacked."""
    if isinstance(rows[0], tf.SparseTensor):
        return tf.sparse.concat(axis=0, sp_inputs=list(rows))
    return tf.stack(rows) if rows[0].shape.rank == 0 else tf.concat(rows, axis=0)


def bytes_and_lengths(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return texts as numbers, which collectives carry: all their bytes in a row, and the length of each."""
    with tf.device("/device:CPU:0"):
        joined_bytes = tf.io.decode_raw(tf.strings.reduce_join(texts), tf.uint8)
        return tf.cast(joined_bytes, tf.int32), tf.strings.length(texts)


def texts_of(row: tf.Tensor, lengths: tf.Tensor) -> tf.Tensor:
    """Return the texts of a result of `bytes_and_lengths`, or of several that are joined along their first dim."""
    with tf.device("/device:CPU:0"):
        count = tf.size(lengths)
        owners = tf.repeat(tf.range(count), tf.reshape(lengths, [-1]))
        signs = tf.gather(tf.constant([bytes([code]) for code in range(256)]), row)
        return tf.reshape(tf.strings.unsorted_segment_join(signs, owners, count), tf.shape(lengths))


class Released:
    """An iterator that consists of several iterators of TensorFlow, and can end them."""

    def release(self) -> None:
        """Release the iterators."""


class _Raising(OwnedIterator):
    """An iterator that raises, in eager code, the causes that a function finds for TensorFlow's errors."""

    def __init__(self, dataset: tf.data.Dataset, find: Callable[[str], Exception | None]) -> None:
        super().__init__(dataset)
        self._find = find

    def __next__(self) -> Any:
        with raising(self._find):
            try:
                return self._taken()
            except tf.errors.OutOfRangeError:
                raise StopIteration from None

    def get_next(self) -> Any:
        with raising(self._find):
            return self._taken()

    def _taken(self) -> Any:
        if self._iterator_resource is None:
            raise tf.errors.OutOfRangeError(None, None, "the iterator has been ended")
        if not tf.executing_eagerly() or not tf.config.experimental.get_synchronous_execution():
            return super().get_next()
        tensors = tf.raw_ops.IteratorGetNext(
            iterator=self._iterator_resource,
            output_types=self._flat_output_types,
            output_shapes=self._flat_output_shapes,
        )
        return structure.from_compatible_tensor_list(self._element_spec, tensors)


def iterator(dataset: tf.data.Dataset, find: Callable[[str], Exception | None]) -> Any:
    """Return an iterator that raises the cause that ``find`` returns for an error's text, if it returns one."""
    return _Raising(dataset, find)


def not_before_asked(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset with an option by which it makes no element before the first one is requested."""
    options = tf.data.Options()
    options.experimental_warm_start = False
    return dataset.with_options(options)


@contextlib.contextmanager
def raising(find: Callable[[str], Exception | None]) -> Iterator[None]:
    """Raise the cause that a function finds for an error of TensorFlow, in place of the error."""
    try:
        yield
    except tf.errors.OpError as error:
        found = find(str(error))
        if found is None:
            raise
        raise found.with_traceback(None) from found.__cause__


def end(iterators: Iterable[Any], *, seconds: float) -> int:
    """End iterators for good; return the number of those that still wait for their generators, in threads."""
    deadline = time.monotonic() + seconds
    threads = [threading.Thread(target=_end, args=(one,), name="tfdist-end-input", daemon=True) for one in iterators]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return sum(thread.is_alive() for thread in threads)


class EndThreads:
    """Threads that are started now and end iterators later: Python 3.12 starts no thread at its exit."""

    def __init__(self, count: int = 4) -> None:
        self._given: queue.SimpleQueue[tuple[Any, threading.Event]] = queue.SimpleQueue()
        for _ in range(count):
            threading.Thread(target=self._run, name="tfdist-at-exit", daemon=True).start()

    def end(self, iterators: Iterable[Any], *, seconds: float) -> int:
        """End iterators for good; return the number of those that have not ended in time."""
        deadline = time.monotonic() + seconds
        given = [(one, threading.Event()) for one in iterators]
        for one in given:
            self._given.put(one)
        return sum(not ended.wait(max(0.0, deadline - time.monotonic())) for _, ended in given)

    def _run(self) -> None:
        while True:
            iterator, ended = self._given.get()
            try:
                _end(iterator)
            except Exception as error:  # the thread has others to end, and no thread can be started any more
                text = "tfdist: an input cannot be ended (%r); the process may not end by itself."
                logging.getLogger("tfdist").warning(text, error, exc_info=error)
            finally:
                ended.set()
            del iterator


def alive() -> list[Any]:
    """Return every iterator of a dataset in this process, wherever it was made."""
    return [one for one in gc.get_objects() if issubclass(type(one), OwnedIterator | Released)]


def _end(iterator: Any) -> None:
    if isinstance(iterator, Released):
        iterator.release()
        return
    dataset, resource = getattr(iterator, "_dataset", None), iterator._iterator_resource
    if resource is None or dataset is None or tf.is_symbolic_tensor(resource) or not _is_local(resource):
        return  # it has ended, wraps another iterator, is part of a graph, or belongs to another process
    if isinstance(iterator, _Raising):
        iterator._iterator_resource = None
        if sys.getrefcount(resource) == _REFERENCES:
            return  # the last reference ends with this function
    with contextlib.suppress(tf.errors.OpError), tf.device(resource.device):
        tf.raw_ops.MakeIterator(dataset=dataset.take(0)._variant_tensor, iterator=resource)


def _is_local(resource: tf.Tensor) -> bool:
    with tf.device("CPU:0"):
        here = tf.constant(0).device
    task, _, _ = here.rpartition("/device:")
    return bool(resource.device.startswith(f"{task}/"))


class Wrapped(tf.data.Dataset):
    """A dataset with methods of its own, in place of which TensorFlow and Keras see another dataset.

    The other dataset is made at first use, because that takes tenths of a second and a strategy may not need it.
    Private names: `_variant_tensor`, `_inputs`.
    """

    def __init__(self, make: Callable[[], tf.data.Dataset]) -> None:
        self._make = make
        self._made: tf.data.Dataset | None = None
        super().__init__(None)

    @property
    def wrapped(self) -> tf.data.Dataset:
        if self._made is None:
            with tf.init_scope():  # also correct if the first use is in a function that is being traced
                self._made = self._make()
        return self._made

    @property
    def _variant_tensor(self) -> tf.Tensor:
        return self.wrapped._variant_tensor

    def _inputs(self) -> list[tf.data.Dataset]:
        return [] if self._made is None else [self._made]

    @property
    def element_spec(self) -> Any:
        return self.wrapped.element_spec


# Methods that derive a dataset from this one. Names that a version of TensorFlow does not have are left out.
_TRANSFORMATIONS = (
    *("apply", "batch", "bucket_by_sequence_length", "cache", "concatenate", "enumerate", "filter", "flat_map"),
    *("group_by_window", "ignore_errors", "interleave", "map", "padded_batch", "prefetch", "ragged_batch", "rebatch"),
    *("repeat", "scan", "shard", "shuffle", "skip", "snapshot", "sparse_batch", "take", "take_while", "unbatch"),
    *("unique", "window", "with_options"),
)


def _deriving(kind: type) -> type:
    """Let datasets that are derived from one of this class raise the same errors."""
    for name in _TRANSFORMATIONS:
        plain = getattr(tf.data.Dataset, name, None)
        if plain is not None:
            setattr(kind, name, _derivation(plain))
    return kind


def _derivation(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def derived(self: "Failing", *args: Any, **options: Any) -> Any:
        made = plain(self, *args, **options)
        return made if isinstance(made, Failing) else _Derived(made, self.failure)

    return derived


@_deriving
class Failing(Wrapped):
    """A dataset that knows the causes of TensorFlow's errors, and raises them; so do datasets derived from it."""

    def failure(self, text: str) -> Exception | None:
        """Return the exception that the text of TensorFlow's error quotes; None if it quotes no known one."""
        raise AssertionError("a subclass knows it")

    @property
    def _iterated(self) -> tf.data.Dataset:
        return self.wrapped

    def __iter__(self) -> Any:
        return iterator(self._iterated, self.failure)

    def reduce(self, initial_state: Any, reduce_func: Any, name: str | None = None) -> Any:
        with raising(self.failure):
            return self._iterated.reduce(initial_state, reduce_func, name)

    def cardinality(self) -> tf.Tensor:
        if "keras" in sys.modules:  # the caller may be `fit`, whose graph raises the errors of reading
            from tfdist.compat.keras import epochs as keras_epochs

            keras_epochs.take_steps_in(functools.partial(raising, self.failure))
        return self._cardinality()

    def _cardinality(self) -> tf.Tensor:
        return self.wrapped.cardinality()


class _Derived(Failing):
    """A dataset that TensorFlow has derived from a `Failing` one."""

    def __init__(self, made: tf.data.Dataset, find: Callable[[str], Exception | None]) -> None:
        super().__init__(lambda: made)
        self._made = made
        self._options_attr = made._options_attr
        self._find = find

    def failure(self, text: str) -> Exception | None:
        return self._find(text)


# Datasets that make each element from one element of their input; by name, because the classes move between versions.
_ONE_TO_ONE = frozenset({"_MapDataset", "_ParallelMapDataset", "_PrefetchDataset", "_OptionsDataset"})

_ORDERS = ("Shuffle", "Random")  # in the names of datasets that give another order in each iteration


def one_to_one_source(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset before all transformations that make one element from one; itself if there is none."""
    while isinstance(dataset, _Derived) or type(dataset).__name__ in _ONE_TO_ONE:
        (dataset,) = dataset._inputs()
    return dataset


def sources(dataset: tf.data.Dataset) -> list[tf.data.Dataset]:
    """Return a dataset and all that it is made of, each once, the latest first."""
    found: dict[int, tf.data.Dataset] = {}
    pending = [dataset]
    while pending:  # not by recursion: a script may join hundreds of datasets one by one
        one = pending.pop()
        if id(one) not in found:
            found[id(one)] = one
            pending.extend(reversed(one._inputs()))
    return list(found.values())


def reading_matters(dataset: tf.data.Dataset) -> bool:
    """Return whether a later iteration may give other elements if an earlier one is made, but not read."""
    for one in sources(dataset):
        # a repetition or a cache takes one order from what lies before it whenever it is read so far
        if any(name in type(one).__name__ for name in ("Repeat", "Cache")) and any(
            name in type(deeper).__name__ for deeper in sources(one) for name in _ORDERS
        ):
            return True
        for function in one._functions():
            types = dry_run.operations(function.function)
            orders = {name for name in types if "Dataset" in name}  # of a file, for example: their names are enough
            if any(order in name for name in orders for order in _ORDERS):
                return True
            if dry_run.changes(types - orders, meets_others=False) is not None:
                return True
    return False
