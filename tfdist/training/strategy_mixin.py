"""A mix-in that makes Keras' `fit` correct under tfdist's strategies."""

import hashlib
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import validation
from tfdist.cluster.shares import Share, Shares
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat import random_states
from tfdist.compat.keras import keras_frames, keras_trainer
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.device_batches import Ahead
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.gradients.sharding import sharded_slots, slot_saving
from tfdist.gradients.sharding.sharded_slots import OptimizerSharding
from tfdist.monitor.process_clock import step_clock
from tfdist.training import call_ends, keras_loop, local_steps, replicated_model, worker_callbacks
from tfdist.training.checks import row_mixing, untested
from tfdist.training.global_batches import Input, Tee, in_parts, with_like_rows
from tfdist.training.replica import current_step, replica_optimizers
from tfdist.variables import DEVICE_PREFETCH, JOB_ID, SHARES


class KerasTraining:
    """Adopts the Keras models that train under the strategy; to be listed before TensorFlow's strategy class.

    A subclass sets `_workers` before the first model trains.
    """

    _workers: Workers
    #: sees what the replicas of this process are given, step by step; `tfdist verify SCRIPT` sets it
    tee: Tee | None = None
    #: the state of workers that train by themselves between meetings; None: every step spans all of them
    apart: "local_steps.Apart | None" = None
    _moving: "weakref.WeakSet[Input] | None" = None  # inputs of a `fit` whose shares change
    _alone: "weakref.WeakSet[Any] | None" = None  # optimizers that have updated weights outside of replicas

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of replicas over all workers; 1 inside a Keras step, which is computed as on one device."""
        return 1 if current_step.current() is not None else super().num_replicas_in_sync  # type: ignore[misc]

    @property
    def loss_reduction(self) -> str:
        """The reduction in the user's own losses: "detect" (tried on a few rows of the first batch), "mean" or "sum".

        These are the losses of a `train_step` or `compute_loss` of your own, and loss functions that return one number.
        Set it before `fit`.

        Example:
            >>> strategy.loss_reduction = "mean"              # doctest: +SKIP
        """
        return vars(self).get("_loss_reduction", "detect")

    @loss_reduction.setter
    def loss_reduction(self, value: str) -> None:
        vars(self)["_loss_reduction"] = validation.one_of("loss_reduction", value, ("detect", "mean", "sum"))

    @property
    def whole_inputs(self) -> tuple[str, ...]:
        """Names of inputs that are no examples, such as the edges of one graph: every replica gets them whole.

        The other inputs determine the number of examples. A name is a key of ``x`` or its number, where ``x`` is a dict
        or a tuple; deeper ones have slashes. Set it before `fit`, for batches of a dataset or a generator: Keras
        refuses arrays of unlike lengths. All workers must read the same dataset.

        Guaranteed: the numbers of one device, in `fit`, `evaluate`, `predict` and the methods for one batch.

        Example:
            >>> strategy.whole_inputs = ["edges"]             # doctest: +SKIP
        """
        return vars(self).get("_whole_inputs", ())

    @whole_inputs.setter
    def whole_inputs(self, value: Sequence[str | int]) -> None:
        if isinstance(value, str) or not all(type(name) in (str, int) for name in value):
            raise ConfigTypeError(
                f"whole_inputs is {value!r}; it must be a list of names of inputs, such as ['edges'].",
                name="whole_inputs",
                received=value,
            )
        vars(self)["_whole_inputs"] = tuple(map(str, value))

    @property
    def shares(self) -> tuple[int, ...]:
        """The parts of every global batch that replicas take: one positive weight for each, such as (3, 1).

        On a mesh there is a weight for each place along the axis of examples. Set it before `fit`, alike on all
        workers. The batch size stays that of the global batch. Each replica has at least one row of a batch with a row
        for each.

        Guaranteed: the numbers of one device, whatever the shares.

        Example:
            >>> strategy.shares = (3, 1)                      # doctest: +SKIP
        """
        return self.share.shares.weights

    @shares.setter
    def shares(self, value: Sequence[int] | str) -> None:
        if not self._takes_shares:
            raise no_shares(value)
        shares = Shares.of(value, replicas=self._position[1] * self._slices)
        if self.apart is not None and not shares.are_equal:
            raise UnsupportedError(
                f"shares is {value!r} with a synchronization, by which workers meet seldom: each would count alike in "
                "their mean, whatever its rows. Leave one of the two out.",
                name="shares",
                received=value,
            )
        vars(self)["_shares"] = shares

    @property
    def workers(self) -> Workers:
        """The worker processes of this strategy, and how they agree."""
        call_ends.note_use(self)
        return self._workers

    @property
    def sharding(self) -> OptimizerSharding | None:
        """The sharding of this strategy's optimizers; None where each replica has all of their slots."""
        return sharded_slots.of_strategy(self)

    def whole_value(self, variable: keras.Variable) -> Any:
        """The value of an optimizer's variable as one device has it, an array; every worker must call it.

        Where slots are sharded, ``optimizer.variables`` are this worker's parts of them. All other variables are equal
        everywhere, and are returned unchanged.

        Example:
            >>> strategy.whole_value(model.optimizer.variables[-1]).shape        # doctest: +SKIP
            (8, 1)
        """
        return slot_saving.whole_value(self._workers, variable)

    @property
    def is_chief(self) -> bool:
        """Whether this process is the one that writes files and shows progress."""
        return self._workers.is_chief

    def scope(self) -> Any:
        """Return a context in which variables are created on every replica.

        Example:
            >>> with strategy.scope():                       # doctest: +SKIP
            ...     model = keras.Sequential([keras.layers.Dense(1)])
            ...     model.compile("sgd", "mse")
        """
        call_ends.end_inputs_with_process()
        call_ends.note_use(self)
        self._adopt_caller()
        return super().scope()  # type: ignore[misc]

    @tf_strategies.not_converted
    def run(self, fn: Any, args: Any = (), kwargs: Any = None, options: Any = None) -> Any:
        """Call a function on every replica, as TensorFlow does; for a loop of your own.

        Example:
            >>> strategy.run(step, args=(next(batches),))        # doctest: +SKIP
        """
        call_ends.note_use(self)
        self._refuse_keras("run")
        return super().run(fn, args, kwargs, options)  # type: ignore[misc]

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the dataset distributed over the replicas; for a loop of your own as TensorFlow does it."""
        call_ends.note_use(self)
        epoch_iterator = keras_trainer.calling_epoch_iterator()
        caller = None if epoch_iterator is None else self._adopt_caller()
        if epoch_iterator is None or caller is None:
            self._refuse_keras("experimental_distribute_dataset")
            is_cut = tf_strategies.replica_count(self) > 1
            if is_cut and (self.whole_inputs or not self.share.shares.are_equal):
                replicas = tf_strategies.slices_of_replicas(self.extended)  # type: ignore[attr-defined]
                parts = in_parts(dataset, self._workers, self.share, replicas, self.whole_inputs)
                return super().distribute_datasets_from_function(lambda context: parts, options)  # type: ignore[misc]
            dataset = with_like_rows(dataset) if is_cut else dataset
            return super().experimental_distribute_dataset(dataset, options)  # type: ignore[misc]
        worker_callbacks.quiet(caller, self._workers)
        batches = keras_trainer.batches_of(epoch_iterator)
        self._require_rows(keras_trainer.batch_size_of(epoch_iterator), training=keras_trainer.is_fitting(caller))
        moves = self.measures_shares or any(
            getattr(one, "moves_shares", False) for one in keras_trainer.given_callbacks(caller)
        )
        distributed = Input(
            dataset,
            batches=batches,
            share=self.share,
            workers=self._workers,
            expect=lambda batches: keras_trainer.expect_batches(epoch_iterator, batches),
            gives_places=self._predicts_from_input and keras_trainer.is_predicting(caller),
            whole=self.whole_inputs,
            tee=self.tee,
            moves=moves and self._workers.count > 1,
            ahead=self._ahead,
        )
        if moves:
            self._moving = weakref.WeakSet() if self._moving is None else self._moving
            self._moving.add(distributed)
        call_ends.at_end(caller, distributed.end)
        if distributed.is_own:
            keras_trainer.set_batches(epoch_iterator, distributed.batches)
        return distributed

    def reduce(self, reduce_op: Any, value: Any, axis: Any) -> Any:
        """Reduce a value over replicas, as TensorFlow does.

        Example:
            >>> strategy.reduce("SUM", strategy.run(step), axis=None)    # doctest: +SKIP
        """
        # Keras takes the mean of a nest of per-replica batches to see their shapes, which may differ.
        if isinstance(value, (tuple, list, dict)) and keras_trainer.asks_for_shapes():
            return tf_strategies.first_local_value(value)
        return super().reduce(reduce_op, value, axis)  # type: ignore[misc]

    def on_variable(self) -> None:
        """Adopt the object that is creating a variable: a compiling model may save before it trains.

        An optimizer learns here that its slots are sharded.
        """
        optimizer = keras_optimizer.creating_variable()
        sharding = None if optimizer is None else self.sharding
        if sharding is not None:
            sharding.adopt(optimizer)
        compiling = keras_trainer.compiling_model()
        if compiling is None:
            return
        self._require_created_inside(compiling, "is compiled")
        self._take(compiling)
        if getattr(compiling, "optimizer", None) is not None:
            replica_optimizers.require_scope(compiling.optimizer, self)

    def on_lone_update(self, optimizer: Any) -> None:
        """Judge an optimizer that updates weights outside of replicas, once: nothing adds up its gradients there."""
        if self._alone is None:
            self._alone = weakref.WeakSet()
        if optimizer in self._alone:
            return
        self._alone.add(optimizer)
        keras_loop.require_scope(keras_optimizer.known_variables(optimizer), self)
        if self._workers.count > 1 and self._workers.is_chief:
            step_clock().warn(
                f"the optimizer {optimizer.name!r} updates weights outside of strategy.run(), where nothing adds up "
                f"gradients: each of {self._workers.count} workers applies those that it computed, and if these "
                "differ, so do the weights. Let model.fit() train, or compute and apply gradients in a function that "
                "strategy.run() calls, for batches of strategy.experimental_distribute_dataset()."
            )

    #: whether the first `fit` measures how many rows each worker computes in the same time
    measures_shares = False
    #: whether replicas may have unequal parts of a batch
    _takes_shares = True
    #: whether the predict function of its models takes `epoch.Place`s in the place of batches
    _predicts_from_input = True

    #: whether a replica's part of a batch may wait for its step in the memory of the replica's device
    _goes_ahead = True

    @property
    def _ahead(self) -> Ahead | None:
        """The GPUs on which parts of batches wait for their steps; None: they wait in the host's memory."""
        batches = DEVICE_PREFETCH.read(os.environ)
        if not batches or not self._goes_ahead:
            return None
        devices = self.extended.worker_devices  # type: ignore[attr-defined]
        on_gpus = all(tf.DeviceSpec.from_string(device).device_type == "GPU" for device in devices)
        return Ahead(tuple(devices), batches) if on_gpus and len(devices) == self._slices else None

    @property
    def _slices(self) -> int:
        """The number of slices of this process's part of a batch."""
        return len(tf_strategies.one_of_each(self.extended))  # type: ignore[attr-defined]

    @property
    def _position(self) -> tuple[int, int]:
        """The part of a batch that this process has, and the number of parts; several may have the same."""
        return self._workers.index, self._workers.count

    @property
    def normalizes_by(self) -> str | None:
        """The rows whose statistics batch normalization takes in a step; None: those of the whole batch."""
        is_cut = tf_strategies.replica_count(self) > 1 and self.apart is None
        return row_mixing.OF_REPLICAS if is_cut else None

    def own_step(self, model: Any, kind: str, unseeded: Any) -> "Callable[[Any, int], Any] | None":
        """The function that replaces Keras' step on a replica; None: Keras' own runs."""
        return None

    def before_build(self, model: Any) -> None:
        """Look at a model that is built, before its optimizer is."""

    @property
    def share(self) -> Share:
        """The rows of every global batch that the replicas of this process take."""
        part, parts = self._position
        shares = vars(self).get("_shares") or Shares.equal(parts * self._slices)
        return Share(part * self._slices, self._slices, shares)

    def ready(self, model: Any) -> None:
        """Look at a model that is about to train, test or predict."""

    def move_shares(self, shares: Shares) -> None:
        """Cut the batches of the `fit` that runs by other shares from the next one on; all workers call it alike."""
        self.shares = shares.weights
        for one in self._moving or ():
            one.recut(self.share)

    def _begin_shares(self, given: Sequence[int] | str | None) -> None:
        """Take the shares that the strategy is made with, or those of the job (`tfdist run --shares`)."""
        given = SHARES.read(os.environ) if given is None else given
        self.measures_shares = given == "measured"
        if given is not None and not self.measures_shares:
            self.shares = given

    def _require_rows(self, batch_size: int | None, *, training: bool) -> None:
        """Raise if uneven shares leave a replica without rows of every batch; warn where equal ones or the floor do."""
        shares = self.share.shares
        if batch_size is None or not training:
            return
        if shares.are_equal:
            if (without := len(shares.weights) - batch_size) > 0 and self.is_chief:
                step_clock().warn(
                    f"the batch size is {batch_size}, and there are {len(shares.weights)} replicas: {without} of them "
                    "have no rows of any batch, and compute for nothing. The numbers are those of one device. "
                    f"batch_size is that of the global batch: give at least {len(shares.weights)}, or fewer replicas."
                )
            return
        if batch_size < len(shares.weights):
            raise ConfigError(
                f"the batch size is {batch_size}, and shares {shares.weights} are of {len(shares.weights)} replicas: "
                "some would have no rows of any batch. Take a larger batch, or fewer replicas.",
                name="shares",
                received=shares.weights,
            )
        if (below := shares.below_one_row(batch_size)) and self.is_chief:
            who = ", ".join(map(str, below))
            step_clock().warn(
                f"shares {shares.weights} give less than one row of a batch of {batch_size} to replica {who}, which "
                f"gets one. A batch of {-(-shares.edges[-1] // min(shares.weights))} follows the shares."
            )

    def _adopt(self, model: Any) -> None:
        replicated_model.adopt(model, self, self._workers)

    def _require_created_inside(self, model: Any, what: str) -> None:
        if keras_trainer.created_under(model) is not self:
            raise ConfigError(
                f"the model {model.name!r} {what} in the scope of {type(self).__name__} and was created outside of it, "
                "so it would train without the strategy; it must be created inside, so that its weights exist on every "
                "replica. Create it, its optimizer and its metrics, and call model.compile(), under "
                "`with strategy.scope():`.",
                name=model.name,
            )

    def _refuse_keras(self, method: str) -> None:
        """Raise if Keras' own code calls: an adopted model has its own functions, which call from here."""
        function = keras_frames.calling_keras_function(self)
        if function is None:
            return
        model = keras_trainer.calling_trainer()
        if model is not None:
            self._require_created_inside(model, "is used")
        if model is not None and not keras_trainer.is_marked(model):
            raise ConfigError(
                f"the model {model.name!r} was created in the scope of {type(self).__name__} and never compiled, and "
                "its first use is predict_on_batch: replicas would each predict the whole batch. Call model.compile() "
                "in the scope first, or model.predict().",
                name=model.name,
            )
        seen = f"has called {type(self).__name__}.{method} for a model that tfdist has not recognized"
        raise keras_frames.refuse(function, seen=seen)

    def _adopt_caller(self) -> Any:
        caller = keras_trainer.calling_model(self)
        if caller is not None:
            self._take(caller)
        return caller

    def _take(self, model: Any) -> None:
        untested.require(tf.__version__, keras.__version__)
        call_ends.watch(model)
        self._adopt(model)


def no_shares(value: Any) -> UnsupportedError:
    """The error where a chief hands out the parts of a batch."""
    return UnsupportedError(
        f"shares is {value!r}, and the chief of parameter servers hands equal parts of a batch to its workers. Leave "
        "shares out: with max_staleness above 0 a slow worker does not hold up the others.",
        name="shares",
        received=value,
    )


def agree_on_seed(workers: Workers) -> None:
    """Give workers that have set no seed the chief's, so unseeded shuffles draw alike on all of them.

    They draw alike as well when the job restarts, because a backup resumes at a place of their order.
    """
    mine = random_states.global_seed()
    job = JOB_ID.read(os.environ)
    drawn = int.from_bytes(hashlib.sha256(job.encode()).digest()[:6]) if job else secrets.randbits(48)
    seen = workers.gather([mine is not None, drawn])
    if not seen[:, 0].any():
        random_states.seed_the_unseeded(int(seen[0, 1]))
