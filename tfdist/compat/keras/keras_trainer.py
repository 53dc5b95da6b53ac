"""Keras' trainer: the training model, its building, and its private state.

Private names, read in Keras 3.15.1 (`keras/src/backend/tensorflow/trainer.py`, `keras/src/trainers/trainer.py`):

- A strategy sees variables, datasets and scopes, never the model. `calling_model` finds it in the frames that called
  the strategy; a Keras call without one is refused, and `test_compat` names the frame that moved.
- `_maybe_symbolic_build` takes a batch to build the model and loses it if the input is a generator; `_symbolic_build`
  needs only shapes and dtypes.
- `TensorFlowTrainer`: a `keras.Model` is one, and so is a layer mixed with it, as in Keras' tests.
- `_compile_config`, `_compile_loss`, `_compile_metrics`, `_loss_tracker`, `Layer._losses`, `_flatten_layers`,
  `_distribute_strategy`, `_get_metrics_result_or_logs`: state without a public accessor.
"""

import contextlib
import random
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.trainer import TensorFlowTrainer, TFEpochIterator
from keras.src.random import seed_generator

from tfdist.compat import dry_run, planted
from tfdist.compat.keras import keras_frames
from tfdist.compat.keras import loss as keras_loss
from tfdist.compat.keras.metrics import metric_resets
from tfdist.compat.keras.symbolic import known_outputs
from tfdist.errors import TfdistError

# From the strategy's method up: (override in tfdist) <- TFEpochIterator.__init__ <- fit, and room for a subclass's
# own fit.
_FRAMES_TO_SEARCH = 8
# From the creation of a variable up, through TensorFlow's stack of creators, to `compile`, which makes the loss's
# tracker.
_FRAMES_OF_A_VARIABLE = 40
#: the methods that `override` replaces, each with the methods of Keras' trainer that call it
HOOKS = {
    "_maybe_symbolic_build": ("fit", "evaluate", "train_on_batch", "test_on_batch"),
    "_make_function": ("make_train_function", "make_test_function"),
    "make_train_function": ("fit", "train_on_batch"),
    "make_test_function": ("evaluate", "test_on_batch"),
    "make_predict_function": ("predict", "predict_on_batch"),
    "_get_metrics_result_or_logs": ("fit", "evaluate"),
    "reset_metrics": ("fit", "evaluate"),
}


def calling_model(strategy: tf.distribute.Strategy) -> keras.Model | None:
    """Return the Keras model that was created in this strategy's scope and is calling it now, if one is."""
    for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH):
        candidate = frame.f_locals.get("self")
        # its own dictionary: in a model's __init__ the attribute may not be there yet
        if isinstance(candidate, TensorFlowTrainer) and vars(candidate).get("_distribute_strategy") is strategy:
            return candidate
    return None


def calling_trainer() -> keras.Model | None:
    """Return the innermost Keras model that is calling, whatever strategy it was created under."""
    return keras_frames.innermost(TensorFlowTrainer, _FRAMES_TO_SEARCH)


def lost_hooks() -> list[str]:
    """Return the methods of Keras' trainer that no longer call what `override` takes the place of."""
    return [
        f"{caller} ({hook})"
        for hook, callers in HOOKS.items()
        for caller in callers
        if hook not in keras_frames.code_of(getattr(TensorFlowTrainer, caller)).co_names
    ]


def asks_for_shapes() -> bool:
    """Return whether Keras is building a model from the shapes of a batch."""
    return any(frame.f_code.co_name == "_maybe_symbolic_build" for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH))


def given_callbacks(model: keras.Model) -> list[Any]:
    """Return the callbacks that the user gave to the `fit` of this model that is running, before Keras has met them."""
    for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH):
        if frame.f_locals.get("self") is model and "callbacks" in frame.f_locals:
            given = frame.f_locals["callbacks"]
            return given.callbacks if isinstance(given, keras.callbacks.CallbackList) else keras.tree.flatten(given)
    return []


def calling_callbacks(model: keras.Model) -> keras.callbacks.CallbackList | None:
    """Return the callbacks of the running `fit`, `evaluate` or `predict`; None in `train_on_batch` and user loops."""
    have_callbacks = [keras_frames.code_of(getattr(TensorFlowTrainer, name)) for name in ("fit", "evaluate", "predict")]
    for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH):
        if frame.f_locals.get("self") is model:
            found = frame.f_locals.get("callbacks")
            if isinstance(found, keras.callbacks.CallbackList):
                return found
        if frame.f_code in have_callbacks and frame.f_locals.get("self", model) is model:
            method = f"{type(model).__name__}.{frame.f_code.co_name}"
            raise keras_frames.refuse(method, seen="keeps its callbacks where they are not found")
    return None


def data_of_calling_step() -> Any:
    """Return the batch of the running `train_step`, or None; an optimizer does not see the number of examples."""
    for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH):
        if frame.f_code.co_name == "train_step" and isinstance(frame.f_locals.get("self"), TensorFlowTrainer):
            names = frame.f_code.co_varnames[: frame.f_code.co_argcount]  # a `train_step` of the user's may have others
            return frame.f_locals.get(names[1]) if len(names) > 1 else None
    return None


def is_predicting(model: keras.Model) -> bool:
    """Return whether Keras' own `predict` of this model is running, with the function that `override` has given it."""
    kind = type(model)
    own = kind.make_predict_function is TensorFlowTrainer.make_predict_function
    predict = keras_frames.code_of(TensorFlowTrainer.predict)
    return own and any(
        frame.f_code is predict and frame.f_locals.get("self") is model
        for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH)
    )


def is_fitting(model: keras.Model) -> bool:
    """Return whether the input that is being made is that of Keras' own `fit` of this model, not of an evaluation."""
    kinds = {keras_frames.code_of(method) for method in (TensorFlowTrainer.fit, TensorFlowTrainer.evaluate)}
    for frame in keras_frames.frames(2, _FRAMES_TO_SEARCH):
        if frame.f_code in kinds and frame.f_locals.get("self") is model:
            return frame.f_code is keras_frames.code_of(TensorFlowTrainer.fit)
    return False


def compiling_model() -> keras.Model | None:
    """Return the model whose `compile` is making a variable now, if one is."""
    for frame in keras_frames.frames(2, _FRAMES_OF_A_VARIABLE):
        candidate = frame.f_locals.get("self") if frame.f_code.co_name == "compile" else None
        if isinstance(candidate, TensorFlowTrainer):
            return candidate
    return None


def created_under(model: keras.Model) -> tf.distribute.Strategy | None:
    return vars(model).get("_distribute_strategy")


def mark(model: keras.Model, strategy: tf.distribute.Strategy) -> bool:
    state = planted.of_model(model)
    new = state.strategy is not strategy
    if new and (model.train_function or model.test_function):
        on_batch = [keras_frames.code_of(TensorFlowTrainer.train_on_batch)]
        on_batch.append(keras_frames.code_of(TensorFlowTrainer.test_on_batch))
        for frame in keras_frames.frames(1, _FRAMES_OF_A_VARIABLE):
            if frame.f_code in on_batch and frame.f_locals.get("self", model) is model:
                method = f"{type(model).__name__}.{frame.f_code.co_name}"
                raise keras_frames.refuse(method, seen="has made its step before tfdist has recognized the model")
    state.strategy = strategy
    if new:  # what was made for one device, or for another strategy, is made again
        model.train_function = model.test_function = model.predict_function = None
    return new


def is_marked(model: keras.Model) -> bool:
    return planted.of_model(model).strategy is not None


def override(
    model: keras.Model,
    *,
    build: Callable[..., None],
    make_function: Callable[[Callable[..., Any]], Any],
    make_predict_function: Callable[[], Any],
    before: Callable[[bool], None],
    settle: Callable[[dict[str, Any]], dict[str, Any]] = lambda logs: logs,
) -> None:
    """Give one model object its own way to build itself and to make its train, test and predict functions.

    A subclass's own `make_train_function` still runs. A step's logs are taken as they are, because Keras would read
    every metric's variables again, from all workers.
    """
    if lost := lost_hooks():
        what = f"Keras' trainer ({', '.join(lost)})"
        raise keras_frames.refuse(what, seen="does not call what tfdist takes the place of")
    own = vars(model)
    kind = type(model)

    def make_train(force: bool = False) -> Any:
        before(True)
        return kind.make_train_function(model, force)

    def make_test(force: bool = False) -> Any:
        before(False)
        return kind.make_test_function(model, force)

    def make_predict(force: bool = False) -> Any:
        before(False)
        if kind.make_predict_function is not TensorFlowTrainer.make_predict_function:
            return kind.make_predict_function(model, force)
        if model.predict_function is None or force:
            model.predict_function = make_predict_function()
        return model.predict_function

    own["_maybe_symbolic_build"] = build
    own["_make_function"] = make_function
    own["make_train_function"] = make_train
    own["make_test_function"] = make_test
    own["make_predict_function"] = make_predict

    def epoch_logs(logs: dict[str, Any]) -> dict[str, Any]:
        settled = settle(logs)
        if logs_are_metrics(model):
            return metric_resets.logs_now(model, logs, settled)
        return kind._get_metrics_result_or_logs(model, settled)

    own["_get_metrics_result_or_logs"] = epoch_logs
    metric_resets.watch(model)


def watch_steps(
    model: keras.Model, step: Callable[[str], AbstractContextManager[None]], in_python: Callable[[], None]
) -> None:
    """Observe when the train and test functions of a model without a strategy run, unless it is watched already."""
    own, kind = vars(model), type(model)
    if "_make_function" in own:
        return

    def make_function(user_step: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def noted(data: Any) -> Any:
            in_python()
            if user_step == model.train_step:
                note_graph(model)
            return user_step(data)

        function = kind._make_function(model, noted)

        def run(iterator: Any) -> Any:
            with step("train" if user_step == model.train_step else "test"):
                return function(iterator)

        return run

    own["_make_function"] = make_function


def train_function(model: keras.Model) -> Any:
    """Return the model's train function, made if there is none, without announcing that Keras trains."""
    type(model).make_train_function(model)
    return model.train_function


def note_logs(model: keras.Model, *, are_metrics: bool) -> None:
    planted.of_model(model).logs_are_metrics = are_metrics
    note_graph(model)


def note_graph(model: keras.Model) -> None:
    """Note the graph in which a step of a model is being traced, if one is."""
    if tf.inside_function():
        planted.of_model(model).graphs.append(weakref.ref(tf.compat.v1.get_default_graph()))


def changed_variables(model: keras.Model, known: Iterable[Any]) -> list[str]:
    """Return the names of variables that traced steps of a model without a strategy change, without the known ones."""
    if planted.of_model(model).strategy is not None:
        return []  # strategies have variables of their own
    handles = {id(keras_value.handle) for one in known if hasattr(keras_value := getattr(one, "value", one), "handle")}
    found = set()
    for graph in planted.of_model(model).live_graphs():
        names = {id(variable.handle): variable.name for variable in graph.variables}
        for outside, inside in graph.captures:
            if id(outside) in names.keys() - handles and any(op.type.startswith("Assign") for op in inside.consumers()):
                found.add(names[id(outside)])
    return sorted(found)


def seeded_draws(model: keras.Model) -> list[str]:
    """Return the types of the operations of traced steps that draw random numbers from a state of their kernels."""
    return sorted({name for graph in planted.of_model(model).live_graphs() for name in dry_run.seeded_draws(graph)})


def logs_are_metrics(model: keras.Model) -> bool:
    """Return whether the logs of the step that was traced last are the model's metrics over all replicas."""
    return planted.of_model(model).logs_are_metrics


def initial_epoch(model: keras.Model) -> int:
    """Return the epoch at which a restored backup lets `fit` begin, 0 without one."""
    return int(model._initial_epoch or 0)


def set_initial_epoch(model: keras.Model, epoch: int) -> None:
    model._initial_epoch = epoch


def calling_epoch_iterator() -> TFEpochIterator | None:
    """Return the epoch iterator that is being made and has asked the strategy to distribute its dataset."""
    return keras_frames.innermost(TFEpochIterator, _FRAMES_TO_SEARCH)


def batches_of(epoch_iterator: TFEpochIterator) -> int | None:
    """Return the number of batches in the input as Keras knows it; tf.data does not know it for arrays."""
    return epoch_iterator._num_batches


def batch_size_of(epoch_iterator: TFEpochIterator) -> int | None:
    """Return the examples of a whole batch, where they are known."""
    try:
        found = epoch_iterator.data_adapter.batch_size
    except (NotImplementedError, AttributeError, ValueError, IndexError, TypeError):
        return None  # an adapter that does not say, or a dataset whose first input is None or has no rows
    return None if found is None else int(found)


def set_batches(epoch_iterator: TFEpochIterator, batches: int | None) -> None:
    """Set the number of batches of an epoch, or None; it is not Keras' count if workers have data of their own."""
    adapter = epoch_iterator.data_adapter
    count = tf.data.UNKNOWN_CARDINALITY if batches is None else batches
    adapter._dataset = adapter._dataset.apply(tf.data.experimental.assert_cardinality(count))
    epoch_iterator._num_batches = batches


def expect_batches(epoch_iterator: TFEpochIterator, batches: int) -> None:
    """Let the epochs that begin from now on have this many batches, of the same dataset."""
    epoch_iterator._num_batches = batches


def wait_for_nothing(epoch_iterator: TFEpochIterator) -> None:
    """Keep an epoch from waiting, at its end, for whatever threads of this process have under way in TensorFlow."""
    vars(epoch_iterator)["tf_sync"] = lambda: None


def symbolic_build(model: keras.Model, spec: Any) -> None:
    """Build a model, its loss, metrics and optimizer for batches of this spec.

    A model with its own `train_step` need not be callable (a GAN is two models), nor does its compiled loss have to
    accept such batches (without targets, say); its first step builds it then.
    """
    with model.distribute_strategy.scope():
        try:
            if not known_outputs.build(model, spec):
                model._symbolic_build(data_batch=spec)
        except TfdistError:
            raise
        except Exception:
            if type(model).train_step is TensorFlowTrainer.train_step:
                raise


def is_built(model: keras.Model) -> bool:
    """Return whether nothing is left for `symbolic_build` to do."""
    parts = [model._compile_metrics, model._compile_loss, model.optimizer]
    return all(layer.built for layer in model._flatten_layers()) and all(p is None or p.built for p in parts)


def layers(model: keras.layers.Layer) -> list[keras.layers.Layer]:
    return list(model._flatten_layers())


def optimizers(model: keras.Model, *, of_layers: bool = True) -> list[keras.optimizers.Optimizer]:
    """Return the optimizers that the model and its layers hold, also in lists and dictionaries (as GANs do)."""
    found: dict[int, keras.optimizers.Optimizer] = {}

    def collect(value: Any) -> None:
        if isinstance(value, keras.optimizers.Optimizer):
            found.setdefault(id(value), value)
        elif isinstance(value, (list, tuple)):
            for item in value:
                collect(item)
        elif isinstance(value, dict):
            collect(list(value.values()))

    for layer in layers(model) if of_layers else [model]:
        collect([getattr(layer, "optimizer", None), *vars(layer).values()])
    return list(found.values())


@contextlib.contextmanager
def added_losses_kept(model: keras.Model) -> Iterator[None]:
    """Restore the losses that layers have added, after the block: eager replicas share the layers."""
    kept = [(layer, list(layer._losses)) for layer in layers(model)]
    try:
        yield
    finally:
        for layer, losses in kept:
            layer._losses[:] = losses


def compiled_losses(model: keras.Model) -> Any:
    container = model._compile_loss
    return container if container is not None and container.built else None


def metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Return every metric that a step of this model may update, containers flattened."""
    found: list[keras.metrics.Metric] = []
    pending = list(model.metrics)
    while pending:
        metric = pending.pop(0)
        found.append(metric)
        pending.extend(getattr(metric, "metrics", None) or metric._metrics)
    return found


def global_seed_generator() -> keras.random.SeedGenerator:
    """Return the generator of unseeded random numbers; the state of Python's generator, which seeds it, is restored."""
    before = random.getstate()
    try:
        return seed_generator.global_seed_generator()
    finally:
        random.setstate(before)


def use_global_seed_generator(generator: keras.random.SeedGenerator) -> None:
    """Let this thread draw from the generator: Keras has one for each thread, and so has TensorFlow each replica."""
    global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)


def has_own_train_step(model: keras.Model) -> bool:
    """Return whether the model trains by another `train_step` than Keras'."""
    return getattr(model.train_step, "__func__", None) is not TensorFlowTrainer.train_step


def reduces_by_itself(model: keras.Model, user_step: Callable[..., Any]) -> bool:
    """Return whether code of the user's, and not Keras, decides what losses and logs of a step are reduced to."""
    own = (user_step, model.compute_loss, model.compute_metrics)
    if not all(getattr(one, "__module__", "").startswith("keras.src.") for one in own):
        return True
    container = compiled_losses(model)
    return container is not None and not all(keras_loss.is_of_keras(entry.loss) for entry in container._flat_losses)


def override_compute_loss(model: keras.Model, finish: Callable[[Any, Any], Any]) -> None:
    """Let one model that has a `compute_loss` of its own return ``finish(loss, y_pred)`` of it, once."""
    kind = type(model)
    if kind.compute_loss.__module__.startswith("keras.src.") or "compute_loss" in vars(model):
        return

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        y_pred = kwargs.get("y_pred", args[2] if len(args) > 2 else None)
        return finish(kind.compute_loss(model, *args, **kwargs), y_pred)

    vars(model)["compute_loss"] = compute_loss


def computes_in_16_bits(model: keras.Model) -> bool:
    """Return whether some layer computes in a float of 16 bits."""
    return any(layer.compute_dtype in ("float16", "bfloat16") for layer in layers(model))


def logs_by_itself(model: keras.Model, user_step: Callable[..., Any]) -> bool:
    """Return whether Keras alone decides what a step of the model logs: its metrics, as they are at the end."""
    own = (user_step, model.compute_metrics, model.get_metrics_result)
    return all(getattr(one, "__module__", "").startswith("keras.src.") for one in own)


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    return dict(model._compile_config.config) if model.compiled and hasattr(model, "_compile_config") else {}


def metrics_result(model: keras.Model) -> dict[str, Any]:
    """Return the model's metrics as `fit` logs them, from the variables' present values."""
    return dict(model.get_metrics_result())


def input_of(epoch_iterator: Any) -> Any:
    return epoch_iterator._distributed_dataset


def has_compiled_loss(model: keras.Model) -> bool:
    return model._compile_loss is not None


def compiled_loss(model: keras.Model, y: Any, y_pred: Any, sample_weight: Any) -> Any:
    """Return the loss that was given to `compile`, or zero if none was, as where a layer adds the only loss."""
    if not has_compiled_loss(model):
        return tf.zeros([], keras.backend.floatx())
    return model._compile_loss(y, y_pred, sample_weight)


def loss_tracker(model: keras.Model) -> keras.metrics.Mean:
    return model._loss_tracker


def loss_metrics(model: keras.Model) -> list[keras.Metric]:
    """Return the means of the losses of a model with several outputs."""
    return list(getattr(model._compile_loss, "metrics", ()))


def has_own_step(model: keras.Model) -> str | None:
    """Return the name of a method of `train_step`, `test_step`, ... that is not Keras' own, or None."""
    names = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics")
    return next((name for name in names if is_own(model, name)), None)


def is_own(model: keras.Model, name: str) -> bool:
    """Return whether a method of a model is not Keras' own."""
    return name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name)
