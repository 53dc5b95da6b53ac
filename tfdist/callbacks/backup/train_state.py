"""The state that training resumes from, captured between two steps and restored.

Tensors are not copied when they are captured: TensorFlow copies a value that is still held when it writes. So the
training thread pays for holding tensors, not for saving them.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist.callbacks.backup.encoding import decode, encode
from tfdist.callbacks.backup.optimizer_building import build_optimizers
from tfdist.callbacks.backup.state_names import METRIC, VARIABLE, Held, variables_of
from tfdist.callbacks.backup.unsaved_attributes import Unsaved
from tfdist.compat import random_states
from tfdist.compat.keras import callback_fields, keras_trainer
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import tensor_arrays
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.optimizers.learning_rates import factor

_RANDOM, _CALLBACK = "random", "callback"
Arrays = dict[str, Any]
_logger = logging.getLogger("tfdist")


class TrainState:
    def __init__(self, model: keras.Model, others: Sequence[keras.callbacks.Callback]) -> None:
        self._model = model
        self._others = list(others)
        self._unsaved = Unsaved(self._others)
        self._held = Held(model, self._whole)
        self._given: list[float] = []  # the learning rates that this start of the script gives
        self._restored: set[str] = set()  # names, once a backup was restored

    def capture(self) -> tuple[Arrays, dict[str, Any]]:
        """Return the arrays, and the rest as JSON."""
        arrays: Arrays = self._held.capture()
        arrays.update({f"{_RANDOM}/{name}": state for name, state in random_states.capture().items()})
        found = []
        for callback in self._others:
            has_own = callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))
            state = callback.get_state() if has_own else callback_fields.state(callback)
            found += [] if state is None else [(_class_of(callback), state)]
        callbacks = []
        for place, (name, state) in enumerate(found):
            try:
                callbacks.append({"class": name, "state": encode(state, arrays, f"{_CALLBACK}/{place}")})
            except ConfigTypeError as error:
                raise ConfigTypeError(f"The state of the callback {name} cannot be kept: {error}", name=name) from error
        return arrays, {"callbacks": callbacks, "unsaved": self._unsaved.state(), "learning_rates": self._given}

    def _whole(self) -> dict[str, Any]:
        return {name: tf_strategies.primary(one.value) for name, one in variables_of(self._model).whole.items()}

    def unknown(self) -> list[str]:
        """Return the names of variables that a traced step has changed, and that are not part of the state."""
        known = [*variables_of(self._model).all.values(), *random_states.variables()]
        return keras_trainer.changed_variables(self._model, known)

    def begin(self) -> None:
        """Note what callbacks know and optimizers are given when training begins."""
        self._unsaved.begin()
        self._given = [float(rate.numpy()) for _, rate in _learning_rates(self._model)]

    def restore_model(
        self,
        arrays: Mapping[str, NDArray[Any]],
        build: Callable[[], None],
        *,
        has_shards: bool = True,
        in_epoch: bool = True,
    ) -> None:
        """Restore the values of weights, optimizers, seeds and metrics."""

        def own() -> dict[str, keras.Variable]:
            found = variables_of(self._model)
            return found.common if has_shards else found.all

        ours = own()
        saved = [name for kind in (VARIABLE, METRIC) for name in _with_prefix(arrays, kind)]
        if any(name not in ours for name in saved):
            self._restored = {*ours, *saved}
            build()  # also what is never used, and was not saved
            build_optimizers(self._model, own, saved)
        if self._restored:
            kept = self._restored
            ours = {name: one for name, one in own().items() if name in kept or name.startswith(f"{METRIC}/")}
        if not in_epoch:
            ours = {name: one for name, one in ours.items() if name in arrays or not name.startswith(f"{METRIC}/")}
            arrays = {name: one for name, one in arrays.items() if name in ours or not name.startswith(f"{METRIC}/")}
        _assign(ours, arrays)

    def restore_random(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Restore the states of random number generators."""
        random_states.restore({name: np.array(arrays[f"{_RANDOM}/{name}"]) for name in _with_prefix(arrays, _RANDOM)})

    def prepare_callbacks(self, state: Mapping[str, Any]) -> None:
        """Let loggers append to their files; called before training begins."""
        for callback, found in self._matched(state["callbacks"], {}, only=keras.callbacks.CSVLogger):
            if isinstance(callback, keras.callbacks.CSVLogger):
                callback_fields.go_on_writing(callback, found)

    def restore_callbacks(
        self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], *, tell: bool = True
    ) -> None:
        """Restore the other callbacks; called after their `on_train_begin`, which resets them."""
        for callback, found in self._matched(state["callbacks"], arrays, warn=tell):
            setter = getattr(callback, "set_state", None)
            if callable(setter):
                setter(found)
            else:
                callback_fields.set_state(callback, found)
        if tell:
            self._unsaved.tell(state.get("unsaved"))

    def tell_of_learning_rates(self, state: Mapping[str, Any]) -> None:
        """Warn of learning rates that the script has changed between two starts, in place of which others are used."""
        former = state.get("learning_rates", [])
        for (name, rate), given, before in zip(_learning_rates(self._model), self._given, former, strict=False):
            if (restored := float(rate.numpy())) != given != before:
                _logger.warning(
                    "The script gives %s the learning rate %g, and gave it %g when the training of the backup began. "
                    "Training continues with that of the backup, %g. To use another one from the next epoch on, pass "
                    "keras.callbacks.LearningRateScheduler(lambda epoch, rate: %g), or begin anew in another "
                    "backup_dir.",
                    *(name, given, before, restored, given),
                )

    def _matched(
        self,
        saved: Sequence[Mapping[str, Any]],
        arrays: Mapping[str, NDArray[Any]],
        *,
        only: type[keras.callbacks.Callback] = keras.callbacks.Callback,
        warn: bool = False,
    ) -> list[tuple[keras.callbacks.Callback, Any]]:
        """Pair callbacks with their saved states: the first of a class with the first, and so on."""
        left = [(_class_of(callback), callback) for callback in self._others]
        pairs = []
        for entry in saved:
            place = next((i for i, (name, _) in enumerate(left) if name == entry["class"]), None)
            if place is None:
                if warn:
                    _logger.warning("The backup has the state of a callback %s, and fit has none.", entry["class"])
                continue
            _, callback = left.pop(place)
            if isinstance(callback, only):
                pairs.append((callback, decode(entry["state"], arrays)))
        return pairs


def _class_of(callback: keras.callbacks.Callback) -> str:
    return f"{type(callback).__module__}.{type(callback).__qualname__}"


def _with_prefix(arrays: Mapping[str, Any], kind: str) -> list[str]:
    """Return the names of a kind; those of random states without the kind."""
    names = [name for name in arrays if name.startswith(f"{kind}/")]
    return [name.partition("/")[2] for name in names] if kind == _RANDOM else names


def _assign(ours: Mapping[str, keras.Variable], saved: Mapping[str, NDArray[Any]]) -> None:
    _require_same(ours, saved)
    for name, variable in ours.items():
        tf_strategies.assign_locally(variable.value, tensor_arrays.as_dtype(saved[name], variable.dtype))


def _require_same(ours: Mapping[str, keras.Variable], saved: Mapping[str, NDArray[Any]]) -> None:
    theirs = [*_with_prefix(saved, VARIABLE), *_with_prefix(saved, METRIC)]
    missing = sorted(set(ours) - set(theirs))
    unknown = sorted(set(theirs) - set(ours))
    shapes = [
        f"{name} has shape {tuple(ours[name].shape)}, in the backup {saved[name].shape}"
        for name in ours
        if name in saved and tuple(ours[name].shape) != tuple(saved[name].shape)
    ]
    if missing or unknown or shapes:
        words = [*shapes[:1]]
        words += [f"the model has {missing[0]}, the backup has not ({len(missing)} such)"] if missing else []
        words += [f"the backup has {unknown[0]}, the model has not ({len(unknown)} such)"] if unknown else []
        differs = [*missing, *unknown]
        are_metrics = bool(differs) and all(name.startswith(f"{METRIC}/") for name in differs)
        metrics = "Metrics may change when an epoch has ended, and not within it. " if are_metrics else ""
        raise ConfigError(
            f"the backup is of another model: {'; '.join(words)}. {metrics}Train with the model and the optimizer that "
            "it was made with (build them before fit, if they build themselves in their first step), or begin anew in "
            "another backup_dir."
        )


def _learning_rates(model: keras.Model) -> list[tuple[str, Any]]:
    """Return the learning rates that are variables, each with the name of its optimizer."""
    optimizers = keras_trainer.optimizers(model)
    return [(one.name, rate) for one in optimizers for rate in keras_optimizer.learning_rate_variables(one)]


def scalars(logs: Any) -> dict[str, float]:
    """Return those logs of a step that are numbers."""
    if not isinstance(logs, Mapping):
        return {}
    flat = {name: np.asarray(tf.convert_to_tensor(value)) for name, value in logs.items() if not isinstance(value, str)}
    return {name: float(value) for name, value in flat.items() if value.shape == ()}


def scale_learning_rates(
    rule: str, model: keras.Model, *, before: int | None, now: int | None, tell: bool = True
) -> None:
    """Multiply the learning rates of a model's optimizers by the rule's factor, if the global batch has changed."""
    if rule == "none" or before == now is not None:
        return
    if before is None or now is None:
        raise ConfigError(
            f"learning_rate_rule is {rule!r}, and the global batch is not known (before {before}, now {now}). Read "
            "with tfdist.data.read, or pass arrays or batches of a fixed size; or set the rule to 'none'."
        )
    for optimizer in keras_trainer.optimizers(model):
        if keras_optimizer.has_other_learning_rates(optimizer):
            raise ConfigError(
                f"learning_rate_rule is {rule!r}, and the learning rate of {optimizer.name} follows a schedule; scale "
                "the schedule where it is made, and set the rule to 'none'.",
                name="learning_rate_rule",
                received=rule,
            )
        for rate in keras_optimizer.learning_rate_variables(optimizer):
            old = float(rate.numpy())
            rate.assign(old * factor(rule, now / before))
            if tell:
                words = "The global batch was %d and is %d: the learning rate of %s was %g and is %g (rule %r)."
                _logger.warning(words, before, now, optimizer.name, old, float(rate.numpy()), rule)
