"""The dataset that `tfdist.data.read` returns."""

import functools
from typing import Any

import tensorflow as tf

from tfdist import validation
from tfdist.cluster.shares import Share, Shares
from tfdist.compat.tensorflow import tf_data as tf_data
from tfdist.data.order.reading_position import Position
from tfdist.data.reading.epoch_pipeline import Pipeline
from tfdist.data.reading.examples import Examples
from tfdist.errors import ConfigError, TfdistError


class Reading(tf_data.Failing):
    """A `tf.data.Dataset` of global batches that knows which epoch is next, and where in it reading stands.

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
        """Return the error that reading raised and an error of TensorFlow quotes, None where it quotes none.

        Args:
            text: of TensorFlow's error.
        """
        return self._pipeline.failures.behind(text)

    @functools.cached_property
    def _iterated(self) -> tf.data.Dataset:
        with tf.init_scope():
            return _without_tuning(self.wrapped)

    @property
    def examples(self) -> Examples:
        """The directory that is read."""
        return self._pipeline.examples

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

    def state(self, batches: int | None = None) -> dict[str, Any]:
        """Return where reading stands, as JSON of less than 1 KB.

        Args:
            batches: how many batches of the current iteration have been consumed. Default: all at its end; before, as
                many as the replicas of a tfdist strategy have consumed. Anybody else has to say before the end, because
                what was prefetched does not count.
        Raises:
            ConfigError: nobody counts, and ``batches`` is not given.
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
                    "an epoch has begun, and outside of a tfdist strategy nobody counts its batches. Say how many have "
                    "been consumed: state(batches=...)."
                )
            batches = steps if position.is_last else position.batches
        batches = validation.integer("batches", batches, minimum=0, maximum=steps)
        consumed = self._pipeline.batches(position.start).consumed(batches)
        if batches and batches == steps:  # also where a tail was dropped
            consumed = self._pipeline.identity.examples
        return self._pipeline.identity.state(epoch=position.epoch, consumed=consumed)

    def seek(self, state: dict[str, Any]) -> None:
        """Go on from a state: iterators that are made from now on begin there.

        Raises:
            ConfigError: the state belongs to other data, another order or another seed.
        """
        self._position.lead_to(position_of(self._pipeline, state))

    def share(self, first: int, count: int, parts: int | Shares) -> tf.data.Dataset:
        """Return the part of every global batch that a worker's replicas take.

        Args:
            first: the worker's first part.
            count: how many parts it takes.
            parts: how many there are, one per replica, or their `tfdist.cluster.shares.Shares`.
        Returns:
            A dataset of (fingerprint int64 of the first batch else 0, examples of the batch int32, for each part its
            number of examples and its data). A part without examples has one row and the number 0.
        """
        shares = Shares.equal(parts) if isinstance(parts, int) else parts
        return _without_tuning(self._pipeline.epochs(self._position, Share(first, count, shares)))

    def begin(self) -> None:
        """Begin an iteration of shares; a strategy that takes them says so, before it asks for the first."""
        self._position.begin(counted=True)

    def handed_out(self) -> bool:
        """Count a batch, and return whether it was the last of the iteration.

        A strategy that takes shares says so of each that it consumes.
        """
        position = self._position
        position.batches += 1
        position.is_last = position.batches == self._pipeline.batches(position.start).steps
        return position.is_last


def _without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset whose numbers of threads stay: ours are fixed.

    The thread that tunes them takes up to 0.3 s to end with its iterator, in every epoch. What a user adds to a
    `Reading` may have numbers to be tuned, so its own options say nothing of this.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def position_of(pipeline: Pipeline, state: Any) -> Position:
    """Return where to begin: at the first epoch, or where a state says."""
    if state is None:
        return Position()
    try:
        found = pipeline.identity.position(state)
    except ConfigError as error:
        raise ConfigError(f"state cannot be used: {error}", name="state", received=validation.shown(state)) from error
    # what is left may be less than a batch, now that the batches are larger, and be dropped
    return found if pipeline.batches(found.start).steps else Position(found.epoch + 1)
