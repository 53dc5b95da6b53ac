"""The recording of the first steps of a script's `fit`, under its strategy or on one device.

The process ends in the call of `fit`; callbacks that write files and validation do not run.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks.backup.state_names import variables_of
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods
from tfdist.compat.keras.first_batch import batches_of_fit
from tfdist.compat.keras.metrics import metric_resets
from tfdist.compat.tensorflow import tf_data
from tfdist.errors import TfdistError
from tfdist.training.checks import row_mixing
from tfdist.training.epoch import of_any_rows
from tfdist.training.strategy_mixin import KerasTraining
from tfdist.training.worker_callbacks import CHIEF_ONLY
from tfdist.verify.proof import fit_input, model_values
from tfdist.verify.proof.state_files import REVERSED, STRATEGY, Run, StateFiles, Step

_NEVER = 1 << 30

Fit = Callable[..., Any]


class NotComparedError(TfdistError, RuntimeError):
    """Raised if a script cannot be compared; the message has the reason and the remedy."""


class Recorder(keras.callbacks.Callback):
    """A recorder, which writes the values after each execution of steps, and ends training after a number of them."""

    def __init__(
        self, steps: int, files: StateFiles, run: Run, before: Callable[[dict[str, Any]], None] = lambda named: None
    ) -> None:
        super().__init__()
        self._steps = steps
        self._files = files
        self._run = run
        self._before = before

    def on_train_begin(self, logs: Any = None) -> None:
        self._before(_named(self.model))
        self._write({})

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._run.batches.append(0)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        known = self.params.get("steps")  # of an epoch, whose last execution may have fewer
        self._run.batches[-1] = batch + 1 if known is None else min(batch + 1, known)
        self._run.epochs.append(len(self._run.batches) - 1)
        self._write(logs)
        if sum(self._run.batches) >= self._steps:
            self.model.stop_training = True

    def _write(self, logs: Any) -> None:
        values = model_values.read(_named(self.model), self.model.distribute_strategy)
        self._files.write(Step(number=len(self._run.epochs), values={**values, **dict(model_values.logged(logs))}))


def _named(model: keras.Model) -> dict[str, keras.Variable]:
    seeds = [generator.state for generator in keras_variables.seed_generators(model)]
    slots = [variable for optimizer in keras_trainer.optimizers(model) for variable in optimizer.variables]
    return model_values.kinds(variables_of(model), weights=model.trainable_variables, slots=slots, seeds=seeds)


def under_strategy(
    model: keras.Model, arguments: dict[str, Any], fit: Fit, *, folder: str, steps: int, worker: int
) -> None:
    strategy = model.distribute_strategy
    if not isinstance(strategy, KerasTraining):
        raise NotComparedError(
            f"fit trains the model {model.name!r} under {type(strategy).__name__}, which is not a strategy of tfdist; "
            "create and compile it under `with tfdist.strategies.from_environment().scope():`."
        )
    run = Run(replicas=strategy.num_replicas_in_sync, workers=strategy.workers.count)
    files = StateFiles(folder, STRATEGY, worker)
    written = fit_input.Written(folder, worker, steps + model.steps_per_execution)  # the last execution is whole
    strategy.tee = written
    with _prepared(model, arguments, run) as given:
        given["callbacks"].append(Recorder(steps, files, run))
        with _hearing(run):
            fit(model, **given)
        strategy.tee = None
        run.part, run.is_own, run.whole = written.part or 0, written.is_own, list(strategy.whole_inputs)
        files.end(run)  # so that others find the part, where they are waited for
        strategy.workers.gather([0])
        parts = _parts(folder)
        first = fit_input.batches(folder, parts, written.spec, 1, whole=run.whole)
        _predict(model, first, files, run)
    run.is_done = True
    files.end(run)


def on_one_device(model: keras.Model, arguments: dict[str, Any], fit: Fit, *, folder: str, kind: str) -> None:
    """Record the same steps on one device, from the weights and on the batches that were recorded."""
    recorded = StateFiles.of_all(folder, STRATEGY)[0]
    theirs = recorded.run()
    assert theirs is not None
    initial = recorded.steps()[0].values
    run, files = Run(replicas=theirs.replicas), StateFiles(folder, kind, 0)
    adapter = batches_of_fit(arguments)
    spec = tf_data.without_nones(adapter.get_tf_dataset().element_spec)
    under = fit_input.batches(folder, _parts(folder), spec, sum(theirs.batches), whole=theirs.whole)
    if theirs.is_own:
        run.leave_out("how the data are divided: each worker reads its own, and one device was given what they read")
        own = _in_epochs(under, theirs.batches)
    else:
        own = _own(adapter, arguments["steps_per_epoch"], theirs.batches)
    epochs = _same_batches(own, _in_epochs(under, theirs.batches), theirs.batches, run)

    if kind == REVERSED:
        epochs = [[fit_input.reversed_rows(batch, theirs.whole) for batch in epoch] for epoch in epochs]
    if not keras_trainer.is_built(model):  # Keras does it later where there is no strategy
        with contextlib.suppress(Exception), metric_resets.first_values_kept(model):  # a failure is told below
            keras_trainer.symbolic_build(model, spec)

    def begin(named: dict[str, Any]) -> None:
        every = [name for name in {**named, **initial} if not name.startswith(model_values.SLOT)]  # Keras makes later
        unlike = [name for name in every if name not in named or name not in initial]
        if unlike:
            where = "on one device" if unlike[0] in named else "under the strategy"
            raise NotComparedError(
                f"the script makes another model on one device: {unlike[0]} is there {where} alone. Let it make the "
                "same model, whatever the strategy, with names that do not depend on it."
            )
        model_values.assign(named, initial)

    with _prepared(model, arguments, run) as given:
        data = _dataset(epochs, adapter.get_tf_dataset())
        given |= dict.fromkeys(("y", "sample_weight", "class_weight", "batch_size", "steps_per_epoch"))
        given |= {"x": data, "shuffle": False, "validation_split": 0.0, "validation_data": None, "verbose": 0}
        given["callbacks"].append(Recorder(sum(theirs.batches), files, run, begin))
        fit(model, **given)
        _predict(model, under[:1], files, run)
    run.is_done = True
    files.end(run)


@contextlib.contextmanager
def _prepared(model: keras.Model, arguments: dict[str, Any], run: Run) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a `fit` that writes nothing; Keras' layers draw no random numbers meanwhile."""
    layers = keras_trainer.layers(model)
    with layer_methods.without_noise(layers) as quiet:
        note_layers(run, model, quiet)
        given = dict(arguments)
        if given["validation_data"] is not None or given["validation_split"]:
            run.leave_out("validation")
        kept, dropped = _callbacks(given["callbacks"])
        if dropped:
            run.leave_out(f"callbacks that write: {', '.join(dropped)}")
        yield given | {"callbacks": kept, "validation_freq": _NEVER, "verbose": 0}


def note_layers(run: Run, model: keras.Model, quiet: Sequence[Any]) -> None:
    """Record the layers that may compute other numbers here than under the strategy; ``quiet`` are silenced ones."""
    layers = keras_trainer.layers(model)
    if quiet:
        names = ", ".join(layer.name for layer in quiet)
        run.leave_out(f"random numbers of {names}: each replica draws its own, so nothing is dropped or added here")
    run.random += [one.name for one in layers if layer_methods.draws(one) and one not in quiet]
    run.normalising += row_mixing.normalizing(model)
    run.is_short = run.is_short or keras_trainer.computes_in_16_bits(model)


@contextlib.contextmanager
def _hearing(run: Run) -> Iterator[None]:
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: run.said.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("tfdist")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def _callbacks(given: Any) -> tuple[list[Any], list[str]]:
    """Return the callbacks that run, and the names of those that would write."""
    every = getattr(given, "callbacks", given) or []
    every = list(every) if isinstance(every, (list, tuple)) else [every]
    # of tfdist's callbacks all write
    writing = [one for one in every if isinstance(one, CHIEF_ONLY) or type(one).__module__.startswith("tfdist.")]
    history = [one for one in every if isinstance(one, keras.callbacks.History)]
    return [one for one in every if one not in writing + history], [type(one).__name__ for one in writing]


def _parts(folder: str) -> list[int]:
    runs = [files.run() for files in StateFiles.of_all(folder, STRATEGY)]
    return [run.part for run in runs if run is not None]


def _own(adapter: Any, per_epoch: int | None, counts: list[int]) -> list[list[Any]]:
    """Return the batches of the script's own data on one device, ``counts`` of each epoch."""
    epochs: list[list[Any]] = []
    iterator: Iterator[Any] | None = None
    for count in counts:
        if iterator is None or per_epoch is None:
            if epochs:
                adapter.on_epoch_end()
            iterator = iter(adapter.get_tf_dataset())
        found = [batch for _, batch in zip(range(count), iterator, strict=False)]
        epochs.append([tf_data.none_for_optionals(batch) for batch in found])
    return epochs


def _in_epochs(batches: list[Any], counts: list[int]) -> list[list[Any]]:
    ends = list(itertools.accumulate(counts))
    return [batches[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _same_batches(own: list[list[Any]], under: list[list[Any]], counts: list[int], run: Run) -> list[list[Any]]:
    """Return the batches of each epoch to train on: the script's own, unless others were drawn under the strategy."""
    for mine, theirs, count in zip(own, under, counts, strict=True):
        for place in range(count):
            if place < min(len(mine), len(theirs)):
                other, detail = fit_input.difference(theirs[place], mine[place])
            elif place >= max(len(mine), len(theirs)):  # of an execution that was cut short
                continue
            else:
                there = "on one device" if place < len(mine) else "under the strategy"
                other, detail = "rows", f"the epoch has a further batch {there} alone"
            run.others.append(other)
            run.details.append(detail)
    if "examples" in run.others and "rows" not in run.others:
        run.leave_out(
            "the order of the data: under the strategy the script drew other examples than on one device, which was "
            "given those of the strategy. Seed its shuffles and random numbers to have that compared, too"
        )
        return under
    return [mine or theirs for mine, theirs in zip(own, under, strict=True)]


def _dataset(epochs: list[list[Any]], like: tf.data.Dataset) -> tf.data.Dataset:
    """Return a dataset with the batches of the next epoch, and their number, at each iteration.

    Keras finds the end of other datasets by a failing step, which may count as an update. So the last epoch, in which
    training ends, is as long as the first.
    """
    counts = list(map(len, epochs))
    epochs = [*epochs[:-1], epochs[-1] + epochs[-1][-1:] * (counts[0] - counts[-1])]
    left = iter(epochs)
    spec = tf_data.without_nones(like.element_spec)
    if not all(_fits(spec, batch) for epoch in epochs for batch in epoch):  # others may build on the number of rows
        spec = tf.nest.map_structure(of_any_rows, spec)
    leaves = [leaf for leaf in tf.nest.flatten(spec, expand_composites=False) if leaf is not None]

    def batches() -> Iterator[Any]:
        for batch in next(left, []):
            yield tuple(leaf for leaf in tf.nest.flatten(batch, expand_composites=False) if leaf is not None)

    flat = tf.data.Dataset.from_generator(batches, output_signature=tuple(leaves))
    found = flat.map(lambda *given: fit_input.filled(spec, given))
    is_known = len({*counts[:-1], counts[0]}) == 1 and counts[-1] <= counts[0]
    return found.apply(tf.data.experimental.assert_cardinality(counts[0])) if is_known else found


def _fits(spec: Any, batch: Any) -> bool:
    pairs = zip(*(tf.nest.flatten(one, expand_composites=False) for one in (spec, batch)), strict=True)
    return all(kind is None or kind.is_compatible_with(leaf) for kind, leaf in pairs)


def _predict(model: keras.Model, batches: list[Any], files: StateFiles, run: Run) -> None:
    if not batches:
        return
    x, _, _ = keras.utils.unpack_x_y_sample_weight(batches[0])
    try:
        found = model.predict(tf.data.Dataset.from_tensors((x,)), verbose=0)
    except Exception as error:  # noqa: BLE001 - a model that is only trained may predict nothing
        run.leave_out(f"predictions: predict raised {type(error).__name__}")
        return
    flat = [np.asarray(one) for one in keras.tree.flatten(found)]
    number = len(run.epochs) + 1
    files.write(Step(number=number, values={f"{model_values.PREDICTION}/{i}": [one] for i, one in enumerate(flat)}))
