"""The recording of the first steps of a script's own loop: outermost calls in which an optimizer counts an update.

These are calls of a `tf.function`, `strategy.run`, `train_on_batch` or an optimizer. They are replaced for the whole
process, which ends with the script.
"""

import contextlib
import functools
import gc
import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.callbacks.backup import state_names
from tfdist.cluster import strategy_table
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods
from tfdist.training.strategy_mixin import KerasTraining
from tfdist.verify.proof import model_values
from tfdist.verify.proof.fit_steps import NotComparedError, note_layers
from tfdist.verify.proof.state_files import STRATEGY, Run, StateFiles, Step, storable


class LoopSteps:
    """A recorder of the steps of loops, until a `fit` begins."""

    def __init__(self, folder: str, kind: str, worker: int, *, steps: int) -> None:
        self._kind, self._steps = kind, steps
        self._files = StateFiles(folder, kind, worker)
        self._initial: Mapping[str, Any] = {}
        if kind != STRATEGY:
            recorded = StateFiles.of_all(folder, STRATEGY)[0]
            theirs = recorded.run()
            is_loop = theirs is not None and theirs.loop == "loop"
            self._initial = recorded.steps()[0].values if is_loop else {}
            self._steps = len(theirs.epochs) if is_loop and theirs is not None else 0
        self._run = Run(loop="loop")
        self._before: dict[str, list[Any]] = {}
        self._silenced: dict[int, keras.Model] = {}
        self._updates: dict[int, int] = {}
        self._is_inside, self._is_over = False, self._steps == 0
        self._stack = contextlib.ExitStack()  # never closed: layers stay silent until the process ends

    def install(self) -> None:
        function = type(tf.function(lambda: None))
        for owner, name in (
            (function, "__call__"),
            (tf.distribute.Strategy, "run"),
            (keras.Model, "train_on_batch"),
            (keras.optimizers.Optimizer, "apply"),
        ):
            setattr(owner, name, self._watched(getattr(owner, name), name))

    def stop(self) -> None:
        """Stop recording, and discard the records: a `fit` begins."""
        self._is_over = True
        if self._run.epochs:
            self._files.clear()

    def end(self) -> None:
        """Keep the records, if the script has ended before all steps were recorded."""
        if not self._is_over and self._run.epochs:
            self._finish()

    def _watched(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        @tf.autograph.experimental.do_not_convert
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            here = threading.current_thread() is threading.main_thread() and tf.executing_eagerly()
            if self._is_over or self._is_inside or not here:
                return original(*args, **kwargs)
            self._is_inside = True
            try:
                found = _Found.now()
                if not found.may_be_read and name != "train_on_batch":  # of a script's own; others come from tfdist
                    return original(*args, **kwargs)
                self._prepare(found)
                result = original(*args, **kwargs)
                self._look((args[1:], kwargs), result if name != "run" else None)
                return result
            finally:
                self._is_inside = False

        return call

    def _prepare(self, found: "_Found") -> None:
        """Prepare for a possible step: silence layers, and give variables their first values or keep these."""
        for model in found.models:
            if id(model) not in self._silenced:
                self._silenced[id(model)] = model
                quiet = self._stack.enter_context(layer_methods.without_noise(keras_trainer.layers(model)))
                note_layers(self._run, model, quiet)
        if self._run.epochs:
            return
        named = found.named()
        model_values.assign(named, self._initial)
        self._before = model_values.read(named, found.strategy)
        self._updates = found.updates()

    def _look(self, given: Any, result: Any) -> None:
        """Record a possible step, if an optimizer has counted an update."""
        found = _Found.now()
        updates = found.updates()
        if all(count == self._updates.get(key, 0) for key, count in updates.items()):
            return
        self._updates = updates
        run = self._run
        if not run.epochs:
            if self._kind == STRATEGY and not isinstance(found.strategy, KerasTraining):
                raise NotComparedError(
                    "the script's own loop trains without a strategy of tfdist; create the model and the optimizer "
                    "under `with tfdist.strategies.from_environment().scope():`, and call its step by strategy.run."
                )
            self._files.write(Step(number=0, values=self._before))
            run.leave_out("predictions: the steps of a loop of the script's own do not say what is an input")
        run.epochs.append(0)
        run.batches = [len(run.epochs)]
        run.seen.append(list(_digests(given, found.strategy)))
        values = {**model_values.read(found.named(), found.strategy), **dict(_logs(result))}
        self._files.write(Step(number=len(run.epochs), values=values))
        if len(run.epochs) >= self._steps:
            self._finish(found)
            raise SystemExit(0)

    def _finish(self, found: "_Found | None" = None) -> None:
        strategy = (found or _Found.now()).strategy
        self._is_over = True
        self._run.replicas = strategy.num_replicas_in_sync
        self._run.workers = strategy.workers.count if isinstance(strategy, KerasTraining) else 1
        self._run.is_done = True
        self._files.end(self._run)


class _Found:
    """The models, optimizers, metrics and tfdist strategies in this process."""

    def __init__(self, models: list[Any], optimizers: list[Any], metrics: list[Any], strategies: list[Any]) -> None:
        inner = {id(layer) for model in models for layer in keras_trainer.layers(model)[1:]}
        self.models = [one for one in models if id(one) not in inner]
        counted = {id(optimizer) for outer in optimizers for optimizer in _inside(outer)}
        self.optimizers = [one for one in optimizers if id(one) not in counted]
        self._metrics = metrics
        self.strategy = strategies[-1] if strategies else tf.distribute.get_strategy()

    @classmethod
    def now(cls) -> "_Found":
        kinds = (keras.Model, keras.optimizers.Optimizer, keras.Metric, KerasTraining)
        every: dict[type, list[Any]] = {kind: [] for kind in kinds}
        # what an object of a kind has when its creation, during which variables are made, has ended
        last = {keras.Model: "built", keras.optimizers.Optimizer: "iterations", keras.Metric: "variables"}
        for one in gc.get_objects():
            kind = next((kind for kind in kinds if issubclass(type(one), kind)), None)
            if kind is not None and all(hasattr(one, name) for of, name in last.items() if isinstance(one, of)):
                every[kind].append(one)
        return cls(*every.values())

    @property
    def may_be_read(self) -> bool:
        """Whether each worker can read all variables by itself, at any time."""
        if not isinstance(self.strategy, KerasTraining):
            return True
        entries = [strategy_table.get(name) for name in strategy_table.names()]
        kinds = [one for one in entries if one.class_name == type(self.strategy).__name__]
        return self.strategy.sharding is None and all(one.is_replicated for one in kinds)

    def updates(self) -> dict[int, int]:
        return {id(one): int(np.asarray(one.iterations)) for one in self.optimizers}

    def named(self) -> dict[str, Any]:
        models = [model for model in self.models if model.built]
        weights = {id(one): one for model in models for one in model.trainable_variables}
        seeds = {id(one.state) for model in models for one in keras_variables.seed_generators(model)}
        states = {id(one): one for model in models for one in model.non_trainable_variables}
        slots = {id(one): one for optimizer in self.optimizers for one in optimizer.variables}
        counted = {id(one): one for metric in self._metrics for one in metric.variables}
        states = {key: one for key, one in states.items() if key not in {*seeds, *slots, *counted}}
        paths = [one.path for one in weights.values()]
        found: dict[str, Any] = {}
        for kind, group in (("weight", weights), ("state", states), ("slot", slots), ("log", counted)):
            found.update(state_names.named(kind, list(group.values()), paths))
        return found


def _inside(optimizer: Any) -> Iterator[Any]:
    inner = getattr(optimizer, "inner_optimizer", None)
    if inner is not None:
        yield inner
        yield from _inside(inner)


def _logs(result: Any) -> Iterator[tuple[str, list[Any]]]:
    """Yield the numbers that a step returned; values of each replica are no logs."""
    with contextlib.suppress(TypeError, ValueError):  # a nest that Keras does not know
        for name, (value,) in model_values.logged(result):
            if value.ndim == 0:
                yield name, [value]


def _digests(given: Any, strategy: Any) -> Iterator[str]:
    """Yield the number of rows of each tensor that a step received, and a digest of them in any order."""
    for leaf in tf.nest.flatten(given):
        if not isinstance(leaf, (tf.Tensor, np.ndarray, tf.distribute.DistributedValues)):
            continue
        here = strategy.experimental_local_results(leaf)
        rows = [row for one in here for row in (storable(one) if np.ndim(one) else ())]
        if rows:
            total = sum(int.from_bytes(hashlib.sha256(_bytes(np.asarray(row))).digest()[:8]) for row in rows)
            yield f"{len(rows)} {total % (1 << 64)}"


def _bytes(row: np.ndarray) -> bytes:
    # the longest text of all rows, which may be in another part, decides how wide NumPy makes each
    return repr(row.tolist()).encode() if row.dtype.kind in "US" else row.tobytes()
