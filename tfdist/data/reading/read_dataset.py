"""The dataset that `tfdist.data.read` returns, and its pipeline from numbers of examples to elements for `fit`."""

import functools
import hashlib
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tfdist import validation
from tfdist.cluster.shares import Share, Shares
from tfdist.compat.tensorflow import tf_data
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.computed_examples import ComputedFetcher
from tfdist.data.examples.fetch import PAYLOAD, keep_freed_memory
from tfdist.data.examples.joined_columns import ColumnFetcher
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.order import batch_positions, epoch_orders
from tfdist.data.order.batch_positions import WHOLE, BatchChunks, Identity, Position
from tfdist.data.order.class_priors import Prior
from tfdist.data.order.mixtures import Chosen
from tfdist.data.reading import tensor_columns, user_functions
from tfdist.data.reading.element_roles import Pads, padded
from tfdist.data.reading.example_cache import DecodedCache
from tfdist.data.reading.stored_reader import stored_reader
from tfdist.data.reading.user_functions import mapped
from tfdist.data.reading.view import View
from tfdist.errors import ConfigError, TfdistError

_PREFETCHED = 2  # batches
_MOST_AT_ONCE = 16
_EARLY = 2  # chunks of batches that are prepared at once
_KINDS = 8  # shares, with the examples that they are of, for which batches are known

Features = dict[str, Any]
_logger = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Pipeline:
    """The steps that turn examples into batches."""

    view: View
    fetcher: ColumnFetcher
    order: epoch_orders.Order
    seed: int
    global_batch_size: int
    tail: str
    decode: Callable[[Features], Features] | None
    augment: Callable[[Features, tf.Tensor], Features] | None
    cache: DecodedCache | None
    pads: Pads
    finish: Callable[[Features, tf.Tensor | None], Any]
    weighs: bool
    prior: Callable[[epoch_orders.Order, str | None], Prior]
    order_of: Callable[[Manifest, Any], epoch_orders.Order]
    uses_ops: bool

    def __post_init__(self) -> None:
        fetcher, uses_cache = self.fetcher, self.cache is not None
        self.examples = self.view.examples
        self.failures = fetcher.failures
        self.calls_users = self.decode is not None or self.augment is not None or uses_cache
        self.identity = Identity(self.examples.manifest.digest, self.order.name, self.seed, self.order.examples)
        # only whole payloads and users' functions can fail; what is cut out of a record cannot
        self._search: user_functions.Search | None = None
        self._asked = tensor_columns.WhenAsked(fetcher)
        if self.decode is not None or self.augment is not None or PAYLOAD in fetcher.names:
            self._search = user_functions.Search(fetcher, self.decode, self.augment, skip=fetcher.skip)
        keep_freed_memory()
        reads_stored = self.uses_ops and not uses_cache
        stored = stored_reader(fetcher) if reads_stored and isinstance(fetcher, ComputedFetcher) else None
        odd: tensor_columns.ColumnReader = self._asked
        if self._search is not None and not self.calls_users:
            odd = user_functions.Searching(self._asked, self._search)
        self._reader = stored or tensor_columns.reader_of(
            *(fetcher, self.global_batch_size, self._asked, odd), uses_ops=self.uses_ops, caches=uses_cache
        )
        self._is_serial = not self.calls_users and tensor_columns.is_serial(self._reader)
        # trying a batch takes a dataset of its own, which takes longer than reading small rows
        self._tried = None if self._reader.parses and not self.calls_users else self._search

    def batches(self, start: int = 0) -> batch_positions.Batches:
        """The batches of an epoch of which ``start`` examples have been consumed."""
        return batch_positions.Batches(self.order.examples, self.global_batch_size, self.tail, start)

    def of_state(self, state: Any) -> tuple[epoch_orders.Order, Identity]:
        """Return the order and the identity of the examples for which a state was saved.

        If others were appended since, the former ones have kept their numbers, so nothing but the order differs. Also
        the size of buckets may be another one.
        """
        digest, former = (state.get(key) if isinstance(state, dict) else None for key in ("digest", "order"))
        if (digest, former) == (self.identity.digest, self.order.name) or self.view.mixture is not None:
            return self.order, self.identity
        for manifest in self.examples.manifest.generations():
            if manifest.digest == digest:
                order = self.order_of(manifest, former)
                return order, Identity(manifest.digest, order.name, self.seed, order.examples)
        return self.order, self.identity

    def epochs(self, position: Position, share: Callable[[], Share] | None) -> tf.data.Dataset:
        """A dataset of the rest of the epoch at ``position``; both are looked up when the first batch is asked for.

        Whole batches set the position when the last one is handed out; a reader of shares sets it itself.
        """
        # iterators of former shares, or of examples of before an appending, may still read ahead
        known: dict[int, tuple[tuple[Share, Identity], BatchChunks]] = {}

        def chunks_now() -> tuple[int, BatchChunks]:
            key = WHOLE if share is None else share(), self.identity
            kind = next((kind for kind, (other, _) in known.items() if other == key), max(known, default=-1) + 1)
            if kind not in known:
                made = BatchChunks(self.order, self.seed, self.batches, key[0], examples=self._reader.examples)
                known[kind] = key, made
                known.pop(kind - _KINDS, None)  # each keeps the orders of many examples
            return kind, known[kind][1]

        def begin() -> np.ndarray[Any, Any]:
            self.examples.binding.require_manifest()
            if share is None:
                position.begin(counted=False)
            epoch, start = position.epoch, self.batches(position.start).consumed(position.batches)
            kind, chunks = chunks_now()
            text = repr((self.identity, epoch, start, self.global_batch_size, self.tail))
            mark = int.from_bytes(hashlib.sha256(text.encode()).digest()[:7], "little")
            same = epoch, start, self.batches(start).steps, mark, kind
            return np.array([(number, *same) for number in range(chunks.count(start))], np.int64).reshape(-1, 6)

        def end() -> np.bool_:
            position.is_last = True
            return np.bool_(True)

        @_as_it_is
        def stretches_of_epoch(_: tf.Tensor) -> tf.data.Dataset:
            (rows,) = tensor_columns.shaped([tf.numpy_function(self.failures.noted(begin), [], tf.int64)], [[None, 6]])
            return tf.data.Dataset.from_tensor_slices(rows)

        @_as_it_is
        def early(row: tf.Tensor) -> Any:
            number, epoch, start, steps, mark, kind = tf.unstack(row)
            found = self._early(known, epoch, start, number, kind)
            batches = tf.shape(found["step"])
            return {**found, "steps": tf.fill(batches, steps), "mark": tf.fill(batches, mark)}

        @_as_it_is
        def late(found: dict[str, Any]) -> Any:
            data = self._late(found, count)
            return data if share is not None else (tf.equal(found["step"], found["steps"] - 1), data)

        count = None if share is None else share().count
        threads = max(2, min(_MOST_AT_ONCE, len(os.sched_getaffinity(0))))
        # if all needs Python's lock, two threads would only take it from each other
        spread = {} if self._is_serial else {"num_parallel_calls": threads, "deterministic": True}
        # Functions inside a flat_map are prepared anew in every epoch, in hundredths of a second: there is none.
        batches = tf.data.Dataset.range(1).flat_map(stretches_of_epoch)
        batches = tf_data.unbatched(batches.map(early, num_parallel_calls=_EARLY, deterministic=True).prefetch(1))
        batches = batches.map(late, **spread).prefetch(_PREFETCHED)
        if share is not None:
            return batches
        # behind the prefetching, so that it happens when the last batch is asked for
        return batches.map(_as_it_is(lambda is_last, data: tensor_columns.after(is_last, end, data)))

    def _early(
        self, known: Mapping[int, Any], epoch: tf.Tensor, start: tf.Tensor, number: tf.Tensor, kind: tf.Tensor
    ) -> dict[str, Any]:
        """Return the values that are prepared for several batches at once, batches first."""

        def prepared(epoch: Any, start: Any, number: Any, kind: Any) -> list[Any]:
            found = known[int(kind)][1](epoch=int(epoch), start=int(start), number=int(number))
            numbers = [found.steps, found.rows, found.slices, found.ids, found.weights]
            seeds = [epoch_orders.seeds_of(found.ids, seed=self.seed, epoch=int(epoch))] if self.augment else []
            return [*numbers, *seeds, *tensor_columns.arrays_of(self._reader, found.ids)]

        per_example: list[tensor_columns.Spec] = [(tf.int64, []), (tf.float32, [])]
        per_example += [(tf.int32, [2])] if self.augment else []
        per_example += self._reader.specs
        specs: list[tensor_columns.Spec] = [(tf.int64, [None]), (tf.int64, [None]), (tf.int32, [None, None, 3])]
        specs += [(dtype, [None, None, *shape]) for dtype, shape in per_example]
        prepare = self.failures.noted(prepared)
        values = tf.numpy_function(prepare, [epoch, start, number, kind], [dtype for dtype, _ in specs], stateful=False)
        step, rows, slices, ids, weights, *rest = tensor_columns.shaped(values, [shape for _, shape in specs])
        examples: dict[str, Any] = {"ids": ids, "weight": weights}
        if self.augment:
            examples["seeds"] = rest.pop(0)
        examples["columns"] = tuple(rest)
        return {"step": step, "rows": rows, "slices": slices, "examples": examples}

    def _late(self, batch: dict[str, Any], count: int | None) -> Any:
        examples = batch["examples"]
        ids, early = examples["ids"], examples["columns"]
        seeds = examples.get("seeds", tf.zeros([tf.size(ids), 2], tf.int32))
        found, sound = self._made(self._reader, self._tried, ids, seeds, early)
        weight = examples["weight"] * sound
        if count is None and self.tail != "keep":
            for value in [weight, *tf.nest.flatten(found)]:
                if isinstance(value, tf.Tensor):
                    value.set_shape([self.global_batch_size, *value.shape[1:]])
        data = self.finish(found, weight if self.weighs else None)
        if count is None:
            return data
        mark = tf.where(tf.equal(batch["step"], 0), batch["mark"], tf.zeros_like(batch["mark"]))
        return mark, tf.cast(batch["rows"], tf.int32), tensor_columns.cut(data, batch["slices"], count)

    def numbered(self, ids: tf.Tensor, key: tf.Tensor) -> Any:
        """Return a batch of the examples with these numbers, in the form for `fit`; there may be none."""
        if isinstance(self.order, Chosen):
            ids = tf.gather(tf.constant(self.order.numbers), ids)
        seeds = tf.random.stateless_uniform([tf.size(ids), 2], key, None, None, tf.int32)

        found, sound = self._made(self._asked, self._search, ids, seeds, ())
        return self.finish(found, sound if self.weighs else None)

    def _made(
        self,
        reader: tensor_columns.ColumnReader,
        search: user_functions.Search | None,
        ids: tf.Tensor,
        seeds: tf.Tensor,
        early: Sequence[tf.Tensor],
    ) -> tuple[Features, tf.Tensor]:
        """Return the features of a batch, and float32 1 for each sound example; others replace those that are not."""
        if search is None:
            return self._made_by(reader, ids, seeds, early)

        def without(ids: tf.Tensor, seeds: tf.Tensor, _: Any) -> tuple[Features, tf.Tensor]:
            ids, seeds, can = search(ids, seeds)
            found, sound = self._made_by(self._asked, ids, seeds, ())
            return found, sound * can

        return user_functions.either(functools.partial(self._made_by, reader), without, (ids, seeds, early))

    def _made_by(
        self, reader: tensor_columns.ColumnReader, ids: tf.Tensor, seeds: tf.Tensor, early: Sequence[tf.Tensor]
    ) -> tuple[Features, tf.Tensor]:
        if self.cache is None:
            found, sound = self._decoded(reader, ids, list(early))
        else:
            found, sound = self.cache.through(ids, lambda ids: self._decoded(reader, ids, []))
        if self.augment is not None:
            found = mapped("augment", self.augment, found, seeds, is_last=True)
        return padded(found, self.pads, self.failures), sound

    def _decoded(
        self, reader: tensor_columns.ColumnReader, ids: tf.Tensor, early: list[tf.Tensor]
    ) -> tuple[Features, tf.Tensor]:
        found, sound = reader.late(ids, early)
        found = tensor_columns.with_shapes(self.examples.schema, found)
        if self.decode is not None:
            found = mapped("decode", self.decode, found, is_last=self.augment is None)
        return found, sound


# AutoGraph would read the source of our own functions for nothing. It converts those of a user, each as a tf.function.
_as_it_is = tf.autograph.experimental.do_not_convert


class Reading(tf_data.Failing):
    """A `tf.data.Dataset` of global batches that knows the next epoch and the position in it.

    Each iteration is an epoch. The next epoch begins once one has been read to its end; an iteration that was broken
    off begins again at its start. A tfdist strategy reads of each batch only what its worker's replicas need.

    Args:
        pipeline: how examples become batches.
        position: where to begin.
        device: where batches are prefetched to; None for nowhere else.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.zeros((10, 4), "float32"), "label": np.arange(10)}, folder)
        ...     train = tfdist.data.read(folder, global_batch_size=4)
        ...     train.epoch, train.steps_per_epoch, len([batch for batch in train]), train.epoch
        (0, 3, 3, 1)
    """

    def __init__(self, pipeline: Pipeline, position: Position, device: str | None = None) -> None:
        self._pipeline = pipeline
        self._position = position

        def batches() -> tf.data.Dataset:
            found = pipeline.epochs(position, None)
            return found if device is None else found.apply(tf.data.experimental.prefetch_to_device(device))

        super().__init__(batches)
        if pipeline.calls_users:
            _ = self.wrapped  # their mistakes are seen where they are made

    def failure(self, text: str) -> TfdistError | None:
        """Return the error that reading raised and the text of TensorFlow's error quotes; None where it quotes none."""
        return self._pipeline.failures.behind(text)

    @functools.cached_property
    def _iterated(self) -> tf.data.Dataset:
        with tf.init_scope():
            return _as_written(self.wrapped)

    @property
    def examples(self) -> Examples:
        """The directory that is read."""
        return self._pipeline.examples

    @property
    def population(self) -> int:
        """Number of the examples that are read."""
        pipeline = self._pipeline
        return pipeline.order.examples if pipeline.view.mixture is None else len(pipeline.view)

    @property
    def epoch(self) -> int:
        """The epoch that is read, or is to be read next: 0 for the first."""
        return self._position.epoch + self._position.is_last

    @property
    def global_batch_size(self) -> int:
        """Number of examples of a batch over all replicas."""
        return self._pipeline.global_batch_size

    @property
    def rows(self) -> int | None:
        """Number of examples of every batch; None where the last one may have fewer."""
        return None if self._pipeline.tail == "keep" else self._pipeline.global_batch_size

    @property
    def steps(self) -> int:
        """Number of batches in the iteration that begins next."""
        return self._pipeline.batches(0 if self._position.is_last else self._position.start).steps

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches in a whole epoch."""
        return self._pipeline.batches().steps

    def cardinality(self) -> tf.Tensor:
        """Return the number of batches in the iteration that begins next, int64 scalar."""
        return super().cardinality()

    def _cardinality(self) -> tf.Tensor:
        return tf.constant(self.steps, tf.int64)

    def __len__(self) -> int:
        return self.steps

    def prior(self, label: str | None = None) -> Prior:
        """Return how often each class occurs, and how often it is read in this order.

        A model that is trained in shares of classes predicts by these shares; `Prior.corrected` corrects its logits.

        Args:
            label: the feature that has the classes. Default: the label, if there is one.
        Raises:
            ConfigError: the label has no classes, or a mixture is read whose weights change.

        Example:
            >>> train = tfdist.data.read("data/train", global_batch_size=64, order="balanced")  # doctest: +SKIP
            >>> probabilities = tf.nn.softmax(train.prior().corrected(logits))                  # doctest: +SKIP
        """
        return self._pipeline.prior(self._pipeline.order, label)

    def state(self, batches: int | None = None) -> dict[str, Any]:
        """Return the reading position, as JSON of less than 1 KB.

        Args:
            batches: how many batches of the current iteration have been consumed. Default: all at its end; before, as
                many as the replicas of a tfdist strategy have consumed. Anybody else has to say before the end, because
                what was prefetched does not count. More than there are mean all: with ``steps_per_execution`` Keras
                counts past the end.
        Raises:
            ConfigError: batches are not counted, and ``batches`` is not given.
        Returns:
            What `seek` and ``read(state=...)`` take, on any number of workers, with any global batch size.

        Example:
            >>> train.state(batches=3)                                              # doctest: +SKIP
            {'version': 1, 'epoch': 0, 'consumed': 384, ...}
        """
        position, steps = self._position, self._pipeline.batches(self._position.start).steps
        if batches is None:
            if position.is_uncounted and not position.is_last:
                raise ConfigError(
                    "an epoch has begun, and its batches are not counted outside of a tfdist strategy. Say how many "
                    "have been consumed: state(batches=...)."
                )
            batches = steps if position.is_last else position.batches
        batches = min(validation.integer("batches", batches, minimum=0), steps)
        consumed = self._pipeline.batches(position.start).consumed(batches)
        if batches and batches == steps:  # also where a tail was dropped
            consumed = self._pipeline.identity.examples
        return self._pipeline.identity.state(epoch=position.epoch, consumed=consumed)

    def seek(self, state: dict[str, Any]) -> None:
        """Go on from a state: iterators that are made from now on begin there.

        If the directory was appended to since, they continue with the examples that it had.

        Raises:
            ConfigError: the state belongs to other data, another order or another seed.
        """
        self._position.lead_to(position_of(self._pipeline, state))

    def share(self, first: int, count: int, parts: int | Shares | Callable[[], Shares]) -> tf.data.Dataset:
        """Return the part of every global batch that a worker's replicas take.

        Args:
            first: the worker's first part.
            count: how many parts it takes.
            parts: how many there are, one per replica; or their `tfdist.cluster.shares.Shares`; or a function that
                returns these when an iterator begins. A new iterator continues after the batches that are counted.
        Returns:
            A dataset of (fingerprint int64 of the first batch else 0, examples of the batch int32, for each part its
            number of examples and its data). A part without examples has one row and the number 0.
        """

        def share() -> Share:
            shares = Shares.equal(parts) if isinstance(parts, int) else parts
            return Share(first, count, shares() if callable(shares) else shares)

        return _as_written(self._pipeline.epochs(self._position, share))

    def numbered(self, ids: tf.Tensor, key: tf.Tensor) -> Any:
        """Return a batch of these examples, in the form for `fit`.

        Args:
            ids: numbers of examples, int64 ``[rows]``; there may be none.
            key: of the random numbers of augmentation, int64 ``[2]``.
        """
        return self._pipeline.numbered(ids, key)

    def begin(self) -> None:
        """Begin an iteration of shares; a strategy that takes them calls this before it asks for the first."""
        self._position.begin(counted=True)

    def handed_out(self) -> bool:
        """Count a batch, and return whether it was the last of the iteration.

        A strategy that takes shares calls this for each batch that it consumes.
        """
        position = self._position
        position.batches += 1
        position.is_last = position.batches == self._pipeline.batches(position.start).steps
        return position.is_last


def _as_written(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return the dataset with options by which TensorFlow neither tunes nor rewrites it.

    Numbers of threads are fixed, and nothing can be fused. The tuning thread takes up to 0.3 s to end in every epoch,
    and the search for a better graph 8 to 10 ms. What a user adds to a `Reading` may be tuned.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def position_of(pipeline: Pipeline, state: Any, *, is_newest: bool = False) -> Position:
    """Return the position to begin at: the first epoch, or a state's, with its examples or with all that exist now."""
    if state is None:
        return Position()
    order, identity = pipeline.of_state(state)
    try:
        found = identity.position(state)
    except ConfigError as error:
        raise ConfigError(f"state cannot be used: {error}", name="state", received=validation.shown(state)) from error
    if is_newest and identity != pipeline.identity:
        if found.start:
            raise ConfigError(
                f"resume is 'newest', and the state is in the middle of epoch {found.epoch}: {found.start} of "
                f"{identity.examples} examples were read, and a position among more would mean others. Finish the "
                "epoch with resume='same' first.",
                name="resume",
                received="newest",
            )
        return found
    if identity.digest != pipeline.identity.digest:
        _logger.info(
            "%s: continues with the %d examples of the saved state, not with the %d that are there now.",
            *(pipeline.examples.url, identity.examples, pipeline.identity.examples),
        )
    pipeline.order, pipeline.identity = order, identity
    # less than a batch may be left, now that batches are larger, and it may be dropped
    return found if pipeline.batches(found.start).steps else Position(found.epoch + 1)
