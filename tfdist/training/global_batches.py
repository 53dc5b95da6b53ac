"""Input of Keras' `fit`, `evaluate` and `predict`: global batches, cut into the replicas' slices.

Every worker reads the same dataset and takes its contiguous rows of each global batch, so N replicas train on the
batches of one device, in order, whatever N is. With `AutoShardPolicy.OFF` or `FILE` each worker reads a dataset of its
own. A step then takes one part in (number of workers) of each worker's batch, and workers that run out contribute no
examples until the last one is done. From a dataset of `tfdist.data.read`, a worker reads only its own rows.
"""

import functools
import logging
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import tensorflow as tf

from tfdist.cluster.shares import Share, Shares
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.tensorflow import device_batches, tf_data
from tfdist.compat.tensorflow.device_batches import Ahead
from tfdist.errors import UnsupportedError
from tfdist.training.balance.moving_edges import Edges
from tfdist.training.call_ends import END_SECONDS
from tfdist.training.epoch import Alone, Element, Epoch, Layout, OwnData, SharedData
from tfdist.training.replica import batch_rows
from tfdist.validation import counted

_log = logging.getLogger("tfdist")
_Policy = tf.data.experimental.AutoShardPolicy
_OWN = (_Policy.OFF, _Policy.FILE)  # by which each worker reads data of its own
_READ_AHEAD = 2  # batches
_CUT_AT_ONCE = 2  # where shares move; fixed, so that all workers know which batches may be cut ahead
# What these functions do to tensors is graph operations already, and AutoGraph takes tenths of a second to see that.
_as_it_is = tf.autograph.experimental.do_not_convert


#: turns the dataset of an input's elements into the dataset that is iterated
Tee = Callable[[tf.data.Dataset, "Input"], tf.data.Dataset]


@runtime_checkable
class CountedDataset(Protocol):
    """A `tf.data.Dataset` of global batches that counts consumed batches, and of which a worker may read a part.

    What `tfdist.data.read` returns follows it, so strategies and backups need nothing of `tfdist.data`. Any other
    dataset is read whole by each worker, and replayed when training resumes.
    """

    @property
    def global_batch_size(self) -> int:
        """Examples of a batch over all replicas."""

    @property
    def rows(self) -> int | None:
        """Examples of every batch; None where the last one may have fewer."""

    @property
    def steps(self) -> int:
        """Batches in the iteration that begins next."""

    def share(self, first: int, count: int, parts: int | Shares | Callable[[], Shares]) -> tf.data.Dataset:
        """The part of every global batch that a worker's replicas take.

        Args:
            first: the worker's first part.
            count: how many parts it takes.
            parts: how many there are, one per replica; or their shares; or a function that returns these when an
                iterator begins, which continues after the batches that were handed out in this iteration.
        Returns:
            A dataset of (fingerprint int64 of the first batch else 0, examples of the batch int32, for each part its
            number of examples and its data). A part without examples has one row and the number 0.
        """

    def begin(self) -> None:
        """Begin an iteration of shares."""

    def handed_out(self) -> bool:
        """Count a batch; True if it was the last of the iteration."""

    def failure(self, text: str) -> Exception | None:
        """The error of reading that a text of TensorFlow's error quotes."""

    def state(self, batches: int | None = None) -> dict[str, Any]:
        """The position, as JSON, after ``batches`` of the current iteration, or after all that were counted."""

    def seek(self, state: dict[str, Any]) -> None:
        """Let new iterators begin at a state.

        Raises:
            ConfigError: the state belongs to other data, another order or another seed.
        """


class Input:
    """A dataset, distributed for one call of `fit`, `evaluate` or `predict`; iterate to get an epoch's batches.

    ``is_own`` tells whether each worker reads data of its own.
    """

    def __init__(
        self,
        dataset: tf.data.Dataset,
        *,
        batches: int | None,
        share: Share,
        workers: Workers,
        expect: Callable[[int], None] = lambda _: None,
        gives_places: bool = False,
        whole: Sequence[str] = (),
        tee: "Tee | None" = None,
        moves: bool = False,
        ahead: Ahead | None = None,
    ) -> None:
        self._gives_places = gives_places
        policy = dataset.options().experimental_distribute.auto_shard_policy
        own = workers.count > 1 and policy in _OWN
        self.share = share
        if own and share.process_count != workers.count:
            raise UnsupportedError(
                f"the dataset has experimental_distribute.auto_shard_policy {policy.name}, by which each worker reads "
                f"data of its own, and {workers.count} workers have {counted(share.process_count, 'part')} of a batch "
                "among them: workers that compute with the same examples would have different ones. Give all workers "
                "the same dataset.",
                name="auto_shard_policy",
                received=policy.name,
            )
        if own and not share.shares.are_equal:
            raise UnsupportedError(
                f"the dataset has experimental_distribute.auto_shard_policy {policy.name}, by which each worker reads "
                f"data of its own, and strategy.shares is {share.shares.weights}, parts of a batch that all read. Give "
                "all workers the same dataset, or leave shares out and let each worker read batches of its size.",
                name="shares",
                received=share.shares.weights,
            )
        self.is_own = own
        if whole and own:
            raise _no_whole_inputs(policy, whole)
        if own and policy == _Policy.FILE:
            try:
                dataset = tf_data.shard_by_files(dataset, workers.count, workers.index)
            except tf.errors.NotFoundError:  # its text is the whole graph of the dataset
                raise _no_files(workers.count) from None
        self._edges: Edges | None = None
        self._is_resuming = False  # an epoch in the middle of a change
        self._under_way: Callable[[], Epoch | None] = lambda: None  # the epoch that was begun last
        self.workers = workers
        self._expect = expect
        self.batches = _own_batches(batches, workers) if own else batches
        self._endless = int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY
        self._is_read = False  # all batches of the reading's iteration
        self._readings = [source for source in tf_data.sources(dataset) if isinstance(source, CountedDataset)]
        self._reading = dataset if isinstance(dataset, CountedDataset) else None
        if self._reading is not None:
            if whole:
                raise UnsupportedError(
                    f"strategy.whole_inputs is {tuple(whole)}, and tfdist.data.read gives each replica its examples "
                    "alone. Add what all examples share behind it: data.map(lambda x, y: ({**x, ...}, y)).",
                    name="whole_inputs",
                    received=tuple(whole),
                )
            own_parts = self._reading.share(share.first, share.count, lambda: self.share.shares)
            elements, self.layout = _mapped(own_parts, lambda mark, rows, slices: Element(slices, rows, mark))
            self.element_spec = _whole(self.layout.spec[0][1], self._reading.rows)
        else:
            self.element_spec = tf_data.without_nones(dataset.element_spec)
            moves = moves and not own
            self._edges = Edges(share.shares) if moves else None
            elements, self.layout = _slices(dataset, own, share, workers, whole, self._edges)
        elements = elements if tee is None else tee(elements, self)
        elements = elements.prefetch(_READ_AHEAD)
        self._dataset = elements if self._edges is None else tf_data.not_before_asked(elements)
        self._ahead = ahead if self._edges is None else None  # how far batches are cut ahead has to be known there
        self._division = None if self._ahead is None else self.layout.division(Element.numbers())
        self._epochs: weakref.WeakSet[Epoch] = weakref.WeakSet()

    def __iter__(self) -> Epoch:
        # The iterator is made here, not at the first batch: a seeded shuffle draws a new order for every iterator
        # that is made, and Keras makes some that it does not use.
        epoch = Epoch(
            self._elements(),
            self.layout,
            self._walk(),
            failure=self._failure,
            begin=self._begin,
            took=self._took,
            gives_places=self._gives_places,
            has_one_graph=self.has_one_graph,
        )
        self._epochs.add(epoch)
        return epoch

    def recut(self, share: Share) -> None:
        """Cut by other shares: from the first batch that no worker may have cut ahead, at the latest in the next epoch.

        Batches of `tfdist.data.read` change with the next one.
        """
        self.share = share
        if self._edges is not None:
            epoch = self._epoch
            position, ahead = (0, 0) if epoch is None else (epoch.position, _READ_AHEAD + _CUT_AT_ONCE)
            self._edges.change(share.shares, position + ahead, position=position)
        elif self._reading is not None and not self._is_read:  # else the next epoch asks for the shares
            for epoch in self._epochs:
                epoch.renew(self._elements, seconds=END_SECONDS)

    @property
    def has_one_graph(self) -> bool:
        """Whether graphs take nearly all batches, and Python can make iterators for the others."""
        is_known = self.batches is not None or self._endless
        is_taken = self.workers.count == 1 or (not self.is_own and is_known)
        return is_taken and (self._ahead is None or self._division is None)

    @property
    def changes_at(self) -> int | None:
        """The batch of this epoch from which the present shares hold; None if they hold for all that are left."""
        if self._edges is None:
            return None
        batch, epoch = self._edges.changes_at, self._epoch
        return batch if self._is_resuming or (epoch is not None and epoch.position < batch) else None

    def resume_change(self, former: Shares, batch: int) -> None:
        """Cut the batches before this one by former shares, in the epoch that is entered; none was cut ahead."""
        if self._edges is not None:
            self._is_resuming = True
            self._edges.resume(former, self.share.shares, batch)

    def note_trained(self) -> None:
        """Note that batches were trained, so the batches that were replayed before training resumed are over."""
        self._is_resuming = False

    def end(self) -> None:
        """End the epochs, so no thread makes batches ahead afterwards."""
        ended = [epoch.end(seconds=END_SECONDS) for epoch in self._epochs]
        if not all(ended):
            _log.warning(
                "tfdist: the input still makes an element %g s after the call of Keras that has read it has ended. The "
                "script continues; a generator that waits for what never comes should be told to return.",
                END_SECONDS,
            )

    def _elements(self) -> Any:
        """Return an iterator over elements, which are copied ahead to devices that have memory of their own."""
        if self._ahead is None or self._division is None:
            return tf_data.iterator(self._dataset, self._failure)
        return device_batches.iterator(self._dataset, self._division, self._ahead, self._failure)

    def _walk(self) -> Alone | SharedData | OwnData:
        if self.workers.count == 1:
            return Alone()
        if self.is_own:
            return OwnData(self.workers, self.layout)
        return SharedData(self.workers, self.batches, endless=self._endless, shares=lambda: self.share.shares)

    @property
    def _epoch(self) -> Epoch | None:
        """The epoch that is under way, if it has batches left."""
        epoch = self._under_way()
        is_over = epoch is None or epoch.has_ended or epoch.position == self.batches
        return None if is_over else epoch

    def _begin(self, epoch: Epoch) -> None:
        self._under_way = weakref.ref(epoch)
        if self._edges is not None and not self._is_resuming:
            self._edges.begin()
        if self._reading is not None:
            self._reading.begin()
            self._is_read = False

    def _took(self) -> None:
        self._is_read = self._reading is not None and self._reading.handed_out()
        if self._reading is not None and self._is_read:
            self._expect(self._reading.steps)  # an epoch that was resumed in its middle has fewer than the next

    def _failure(self, text: str) -> Exception | None:
        """Return the error of reading, or of unlike rows, that the text of TensorFlow's error quotes."""
        found = next((error for reading in self._readings if (error := reading.failure(text))), None)
        return batch_rows.refusal_in(text) if found is None else found


def in_parts(
    dataset: tf.data.Dataset, workers: Workers, share: Share, replicas: Sequence[int], whole: Sequence[str]
) -> tf.data.Dataset:
    """A dataset of each batch's parts for this worker's replicas, for a custom training loop."""
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if workers.count > 1 and policy in _OWN:
        raise _no_whole_inputs(policy, whole)

    @_as_it_is
    def cut(*given: Any) -> tf.data.Dataset:
        data = given if type(dataset.element_spec) is tuple else given[0]
        data = batch_rows.with_whole(data, whole)
        batch_rows.require_alike(data)
        bounds = batch_rows.bounds_of(data, share)
        found = [batch_rows.slice_rows(data, bounds[one], bounds[one + 1]) for one in replicas]
        datasets = [tf.data.Dataset.from_tensors(batch_rows.plain(part)) for part in found]
        return functools.reduce(lambda before, after: before.concatenate(after), datasets)

    return dataset.flat_map(cut)


def with_like_rows(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A dataset that TensorFlow will cut for a custom training loop; a batch of unlike rows is an error."""
    specs = tf.nest.flatten(dataset.element_spec)
    is_cut_by_rows = all(isinstance(one, tf.TensorSpec | tf.RaggedTensorSpec | tf.SparseTensorSpec) for one in specs)
    if len(specs) < 2 or not is_cut_by_rows or isinstance(dataset, CountedDataset):
        return dataset

    @_as_it_is
    def compared(*given: Any) -> Any:
        data = given if type(dataset.element_spec) is tuple else given[0]
        batch_rows.require_alike(data)
        return data

    return dataset.map(compared)


def _no_files(workers: int) -> UnsupportedError:
    return UnsupportedError(
        "the dataset has experimental_distribute.auto_shard_policy FILE, by which each worker reads files of its own, "
        f"and it does not begin with files that can be divided among {workers} workers. Leave the policy out: all "
        "workers then read the same dataset, and each computes its rows of every batch. Or begin with a dataset of "
        "files, such as tf.data.TFRecordDataset(names).",
        name="auto_shard_policy",
        received="FILE",
    )


def _no_whole_inputs(policy: Any, whole: Sequence[str]) -> UnsupportedError:
    return UnsupportedError(
        f"the dataset has experimental_distribute.auto_shard_policy {policy.name}, by which each worker reads data of "
        f"its own, and strategy.whole_inputs is {tuple(whole)}: no batch has one such input for all workers. Give all "
        "workers the same dataset.",
        name="whole_inputs",
        received=tuple(whole),
    )


def _mapped(dataset: tf.data.Dataset, make: Callable[..., Element], **options: Any) -> tuple[tf.data.Dataset, Layout]:
    """The dataset of flat elements, and their layout.

    One function does both: tracing and starting another one takes a tenth of a second.
    """
    layouts: list[Layout] = []

    @_as_it_is
    def flat(*given: Any) -> tuple[Any, ...]:
        element = make(*given)
        layouts.append(Layout.of(element.slices))
        return element.flat()

    mapped = dataset.map(flat, **options)
    return mapped, layouts[-1]


def _whole(spec: Any, rows: int | None) -> Any:
    """Return the spec of a batch, given the spec of a part of it."""

    def whole(leaf: Any) -> Any:
        return tf.TensorSpec([rows, *leaf.shape[1:]], leaf.dtype) if isinstance(leaf, tf.TensorSpec) else leaf

    return tf.nest.map_structure(whole, tf_data.without_nones(spec))


def _own_batches(batches: int | None, workers: Workers) -> int | None:
    """Return the steps until every worker's own data has ended; None if a worker does not know how much it has."""
    seen = workers.gather([-1 if batches is None else batches])[:, 0]
    return None if (seen < 0).any() else int(seen.max()) * workers.count


def _slices(
    dataset: tf.data.Dataset, is_own: bool, share: Share, workers: Workers, whole: Sequence[str], edges: Edges | None
) -> tuple[tf.data.Dataset, Layout]:
    def read(data: Any) -> Any:
        return batch_rows.with_whole(tf_data.none_for_optionals(data), whole)

    def cut(data: Any, share: Share, of_batch: tf.Tensor | None = None) -> Element:
        if len(share.shares.weights) > 1:
            batch_rows.require_alike(data)
        slices = batch_rows.parts_of(data, share, of_batch)
        return Element(tuple(slices), batch_rows.rows_of(data), tf.constant(0, tf.int64))

    def alone(*given: Any) -> Element:
        data = given if type(dataset.element_spec) is tuple else given[0]
        return cut(read(data), share)

    def shared(index: tf.Tensor, data: Any) -> Element:
        data = read(data)
        element = cut(data, share, None if edges is None else edges.read(index))
        # The first batch tells whether workers read the same data; the others are not worth the time.
        first = tf.equal(index, 0)
        return element._replace(fingerprint=tf.cond(first, lambda: fingerprint(data), lambda: tf.constant(0, tf.int64)))

    def own(index: tf.Tensor, data: Any) -> tf.data.Dataset:
        del index
        data = tf_data.none_for_optionals(data)
        given = [cut(data, share.of_process(process)) for process in range(share.process_count)]
        given = [element._replace(rows=tf.add_n([rows for rows, _ in element.slices])) for element in given]
        elements = tf.data.Dataset.from_tensors(given[0])
        for element in given[1:]:
            elements = elements.concatenate(tf.data.Dataset.from_tensors(element))
        return elements

    if is_own:
        return _mapped(dataset.enumerate().flat_map(_as_it_is(own)), lambda element: element)
    at_once = tf.data.AUTOTUNE if edges is None else _CUT_AT_ONCE
    options = {"num_parallel_calls": at_once, "deterministic": True}
    if workers.count == 1 and edges is None:
        # if nothing is cut, the function takes less time than threads of its own would cost
        return _mapped(dataset, alone) if len(share.shares.weights) == 1 else _mapped(dataset, alone, **options)
    return _mapped(dataset.enumerate(), shared, **options)


def fingerprint(data: Any) -> tf.Tensor:
    """A 64-bit fingerprint of every value in a batch, int64 scalar."""
    digests = []
    for leaf in tf.nest.flatten(data, expand_composites=True):
        if leaf is None:
            continue
        if leaf.dtype == tf.string:
            digests.append(
                tf.strings.reduce_join(tf.strings.as_string(tf.strings.to_hash_bucket_fast(leaf, 2**62)), separator=",")
            )
        else:
            leaf = tf.cast(leaf, tf.uint8) if leaf.dtype == tf.bool else leaf
            digests.append(tf.io.serialize_tensor(leaf))
    return tf.strings.to_hash_bucket_fast(tf.strings.join(digests, separator=";"), 2**62)
