"""Keras callbacks on several workers: the chief alone writes and shows progress, and all workers decide alike."""

from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.workers.worker_processes import Workers, as_float, as_integer
from tfdist.compat.keras import callback_fields, keras_trainer, keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.errors import UnsupportedError
from tfdist.gradients.sharding import sharded_slots, slot_saving
from tfdist.monitor.process_clock import step_clock
from tfdist.training import callback_analysis, local_steps, loss_scale
from tfdist.training.balance import balance_shares

#: callbacks that write files or to the screen; the chief restores a backup, too, and sends the state to the others
CHIEF_ONLY = (
    keras.callbacks.BackupAndRestore,
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.ProgbarLogger,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)
# Callbacks that save weights: with sharded weights all workers do so together.
_SAVE_MODELS = (keras.callbacks.ModelCheckpoint,)


def adapt(model: keras.Model, workers: Workers, training: bool) -> None:
    """Adapt the callbacks of the `fit`, `evaluate` or `predict` that is running, once."""
    running = keras_trainer.calling_callbacks(model)
    if running is None or any(isinstance(callback, (_Agree, _Ends)) for callback in running.callbacks):
        return
    if training:
        loss_scale.show(model, running)
        _measure_shares(model, running)
    if training and step_clock().reporter is not None:
        running.callbacks.append(_Ends())
    if training and (local := local_steps.of(model)) is not None:
        # it comes before callbacks that read weights at the end: it gives all workers the mean of their weights
        running.callbacks.insert(0, keras.callbacks.LambdaCallback(on_train_end=lambda logs: local.ends()))
    is_sharded = any(sharded_slots.of(optimizer) is not None for optimizer in keras_trainer.optimizers(model))
    is_cut = any(sharded_variable.sharding_of(weight) is not None for weight in model.weights)
    _let_orbax_read_together(running.callbacks, workers, is_sharded=is_sharded)
    if is_sharded:  # where weights are sharded too, all save the model together
        sharded_slots.adapt_callbacks(running.callbacks, writes=workers.is_chief or is_cut)
    if workers.count == 1:
        return
    if is_cut:
        _require_together(running.callbacks)
        for callback in running.callbacks:
            if isinstance(callback, _SAVE_MODELS):
                callback_fields.let_share_folder(callback)
    if not workers.is_chief:  # what all have parts of all save together
        together = (*(_SAVE_MODELS if is_cut else ()), *(sharded_slots.SAVE_SLOTS if is_sharded else ()))
        alone = tuple(kind for kind in CHIEF_ONLY if kind not in together)
        running.callbacks[:] = [callback for callback in running.callbacks if not isinstance(callback, alone)]
    if training:
        agree = _Agree(workers, running.callbacks, is_sharded=is_sharded)
        agree.set_model(model)
        running.callbacks.append(agree)


def _measure_shares(model: keras.Model, running: keras.callbacks.CallbackList) -> None:
    """Measure shares in the first `fit` under a strategy that asks for it."""
    strategy = model.distribute_strategy
    if strategy.measures_shares:
        strategy.measures_shares = False
        measuring = balance_shares.MeasuredShares()
        measuring.set_model(model)
        running.callbacks.insert(0, measuring)


def _let_orbax_read_together(callbacks: list[keras.callbacks.Callback], workers: Workers, *, is_sharded: bool) -> None:
    """Let every worker read what the chief writes: the variables of metrics, and sharded weights, need them all."""
    for callback in callbacks:
        if not isinstance(callback, keras.callbacks.OrbaxCheckpoint):
            continue
        if is_sharded and not callback.save_weights_only:
            raise UnsupportedError(
                "the callback OrbaxCheckpoint saves the optimizer, whose slots are sharded over replicas. Pass "
                "save_weights_only=True, or use ModelCheckpoint or tfdist.callbacks.BackupAndRestore."
            )
        if not workers.is_chief:
            callback_fields.let_take_part(callback)


def _require_together(callbacks: list[keras.callbacks.Callback]) -> None:
    """Raise if a callback of the chief reads weights that all workers must help to gather."""
    for callback in callbacks:
        name = type(callback).__name__
        if isinstance(callback, keras.callbacks.BackupAndRestore):
            raise UnsupportedError(
                f"the callback {name} of Keras backs up the chief's state, and weights are sharded over all workers. "
                "Use tfdist.callbacks.BackupAndRestore, which saves every worker's part."
            )
        if isinstance(callback, keras.callbacks.TensorBoard) and callback.histogram_freq:
            raise UnsupportedError(
                f"the callback {name} has histogram_freq={callback.histogram_freq}, for which the chief reads weights "
                "by itself, and they are sharded over all workers. Pass histogram_freq=0."
            )


def quiet(model: keras.Model, workers: Workers) -> None:
    """Keep TensorBoard from writing except on the chief; otherwise it writes as soon as it gets its model."""
    if workers.is_chief:
        return
    for callback in keras_trainer.given_callbacks(model):
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.write_graph = False
            callback.embeddings_freq = 0


class _Ends(keras.callbacks.Callback):
    """The callback that reports the end of training to the agent: the script may then take any time."""

    def on_train_end(self, logs: Any = None) -> None:
        step_clock().training_ends()


class _Agree(keras.callbacks.Callback):
    """The last callback, which makes a decision of one worker hold on every worker before the next step."""

    def __init__(self, workers: Workers, others: list[keras.callbacks.Callback], *, is_sharded: bool = False) -> None:
        super().__init__()
        self._workers = workers
        # Keras' own callbacks decide from the logs, which are equal; one of the user's that does more than watch may
        # decide from anything.
        self._every_batch = any(_acts_on_batches(callback) for callback in others)
        restoring = [callback for callback in others if isinstance(callback, keras.callbacks.BackupAndRestore)]
        self._restores = bool(restoring)
        self._finds = any(callback_fields.finds_backup(callback) for callback in restoring)
        self._is_sharded = is_sharded

    def on_train_begin(self, logs: Any = None) -> None:
        mine = [self._every_batch, self._restores, self._finds, keras_trainer.initial_epoch(self.model)]
        seen = self._workers.gather(mine)
        self._every_batch = bool(seen[:, 0].any())
        chief_restores, chief_finds, chief_epoch = seen[0, 1:]
        if chief_restores:
            if self._is_sharded:
                sharded_slots.require_same_backup(seen[:, 2].astype(bool).tolist() if chief_finds else [])
            keras_trainer.set_initial_epoch(self.model, int(chief_epoch))
            same = [one for one in keras_variables.persistent_variables(self.model) if slot_saving.part_of(one) is None]
            for variable in same:
                variable.assign(self._workers.from_chief(tf.convert_to_tensor(variable.value)))

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._agree()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        local = local_steps.of(self.model)
        if local is None:
            if self._every_batch:
                self._agree()
        elif not local.holds_decisions():
            self._agree()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        local = local_steps.of(self.model)
        if local is not None:
            local.holds_decisions()
        self._agree()

    def _agree(self) -> None:
        """Stop if any worker wants to stop; use the chief's learning rate."""
        rates = keras_optimizer.learning_rate_variables(self.model.optimizer)
        mine = [as_integer(float(rate.numpy())) for rate in rates]
        seen = self._workers.gather([bool(self.model.stop_training), *mine])
        self.model.stop_training = bool(seen[:, 0].any())
        for rate, own, chiefs in zip(rates, mine, seen[0, 1:], strict=True):
            if chiefs != own:
                rate.assign(as_float(int(chiefs)))


def _acts_on_batches(callback: keras.callbacks.Callback) -> bool:
    """True if a callback may decide something after a batch, as far as can be seen."""
    ours = type(callback).__module__.split(".")[0] in ("keras", "tfdist")
    if ours and not isinstance(callback, keras.callbacks.LambdaCallback):
        return False
    base = keras.callbacks.Callback
    lambdas = {"on_train_batch_begin", "on_train_batch_end"} & vars(callback).keys()
    is_called = bool(lambdas) or any(
        getattr(type(callback), name) is not getattr(base, name)
        for name in ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
    )
    return is_called and not callback_analysis.only_watches(callback)
