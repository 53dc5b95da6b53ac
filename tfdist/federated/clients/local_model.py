"""A client's model: its shared weights, its personal weights, and the values set before each training."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError
from tfdist.federated.algorithms.algorithm import STATISTICS, WEIGHTS, Algorithm
from tfdist.federated.client_update import Arrays

PERSONAL = "personal/"
_FLOATS = ("float16", "bfloat16", "float32", "float64")


class LocalTerms(keras.regularizers.Regularizer):
    """The regularizer mu/2 |w - anchor|^2 + <correction, w>, which algorithms add to a weight's own regularizer.

    Its gradient is mu (w - anchor) + correction. Keras' `fit` and tfdist's strategies compute it like a model's own.
    """

    def __init__(
        self, before: Callable[[Any], Any] | None, proximal: float | None, anchor: tf.Variable, correction: tf.Variable
    ) -> None:
        self._before, self._proximal, self._anchor, self._correction = before, proximal, anchor, correction

    def __call__(self, x: Any) -> Any:
        x = tf.convert_to_tensor(x)
        total = tf.zeros((), x.dtype) if self._before is None else self._before(x)
        if self._proximal is not None:
            total += 0.5 * self._proximal * tf.reduce_sum(tf.square(x - tf.cast(self._anchor, x.dtype)))
        if self._correction is not None:
            total += tf.reduce_sum(tf.cast(self._correction, x.dtype) * x)
        return total

    def get_config(self) -> dict[str, Any]:
        """Return an empty configuration: a saved model has the weight's own regularizer again."""
        return {}


class LocalModel:
    """A model that trains for one client after another; everything it holds is reset in between."""

    def __init__(self, make_model: Callable[[], keras.Model], personal: Sequence[str], algorithm: Algorithm) -> None:
        self.model = _made(make_model)
        kept = _weights_of_layers(self.model, personal)
        self.shared = dict[str, Any]()
        self.personal = dict[str, Any]()
        self.initial = dict[str, NDArray[Any]]()
        trainable = {id(variable) for variable in self.model.trainable_variables}
        for index, variable in enumerate(self.model.weights):
            if keras.backend.standardize_dtype(variable.dtype) not in _FLOATS:
                continue
            kind = PERSONAL if id(variable) in kept else WEIGHTS if id(variable) in trainable else STATISTICS
            name = f"{kind}{index:03d}.{re.sub(r'(_[0-9]+)?$', '', variable.name)}"
            (self.personal if kind == PERSONAL else self.shared)[name] = variable
            self.initial[name] = value_of(variable)
        if not self.shared:
            raise ConfigError(
                f"personal_layers are {list(personal)}, which have all weights of the model; then nothing is learned "
                "together. Leave one out.",
                name="personal_layers",
                received=list(personal),
            )
        known = {id(variable) for variable in (*self.model.weights, *self.model.metrics_variables)}
        self.seeds = [one for one in self.model.variables if id(one) not in known and "seed" in one.path]
        self.corrections = dict[str, tf.Variable]()
        self.anchors = dict[str, tf.Variable]()
        _need_given_weights(self.model.optimizer)
        if algorithm.has_controls:
            _need_plain_sgd(self.model.optimizer)
        if algorithm.has_controls or algorithm.proximal is not None:
            self._add_terms(algorithm)
        with self.model.distribute_strategy.scope():  # whose replicas have slots of their own
            self.model.optimizer.build(self.model.trainable_variables)
        self.optimizer_state = [(variable, value_of(variable)) for variable in self.model.optimizer.variables]

    def weights(self) -> Arrays:
        """Return the initial shared weights, which are the weights of the first round."""
        return {name: self.initial[name] for name in self.shared}

    def set(self, arrays: Mapping[str, Any]) -> None:
        """Set shared and personal weights; a personal weight that is not given gets its initial value."""
        for name, variable in self.shared.items():
            variable.assign(arrays[name])
        for name, variable in self.personal.items():
            variable.assign(arrays.get(name, self.initial[name]))

    def begin(self, weights: Mapping[str, Any], corrections: Mapping[str, Any], seeds: Iterable[Any]) -> None:
        """Set everything that a training reads, from arrays or, in a graph, from tensors."""
        self.set(weights)
        for variable, value in self.optimizer_state:
            variable.assign(value)
        for variable, value in zip(self.seeds, seeds, strict=True):
            variable.assign(value)
        for name, anchor in self.anchors.items():
            anchor.assign(weights[name])
        for name, correction in self.corrections.items():
            correction.assign(corrections[name])

    def set_for_evaluation(self, arrays: Arrays) -> None:
        """Set the weights, with algorithm terms that add nothing to the loss."""
        self.set(arrays)
        for name, anchor in self.anchors.items():
            anchor.assign(arrays[name])
        for correction in self.corrections.values():
            correction.assign(tf.zeros_like(correction))

    def seed_states(self, seed: int) -> list[NDArray[Any]]:
        """Return the states of the seed generators in the model's layers, for a training."""
        found = np.random.SeedSequence(seed).generate_state(max(len(self.seeds), 1))
        return [np.array([value & 0x7FFFFFFF, 0], one.dtype) for one, value in zip(self.seeds, found, strict=False)]

    def _add_terms(self, algorithm: Algorithm) -> None:
        with self.model.distribute_strategy.scope():
            for name, variable in self.shared.items():
                if not name.startswith(WEIGHTS):
                    continue
                value = np.zeros(variable.shape, keras.backend.standardize_dtype(variable.dtype))
                anchor = correction = None
                if algorithm.proximal is not None:
                    anchor = self.anchors[name] = tf.Variable(value, trainable=False)
                if algorithm.has_controls:
                    correction = self.corrections[name] = tf.Variable(value, trainable=False)
                variable.regularizer = LocalTerms(variable.regularizer, algorithm.proximal, anchor, correction)


def value_of(variable: Any) -> NDArray[Any]:
    """Return a copy of a variable's value."""
    return np.array(keras.ops.convert_to_numpy(variable))


def _made(make_model: Callable[[], keras.Model]) -> keras.Model:
    model = make_model()
    if not isinstance(model, keras.Model):
        raise ConfigTypeError(
            f"make_model returned {validation.shown(model)}; it must return a compiled keras.Model.",
            name="make_model",
            received=type(model).__name__,
        )
    if getattr(model, "optimizer", None) is None:
        raise ConfigError(
            f"make_model returned the model {model.name!r}, which is not compiled. Call "
            "model.compile(optimizer, loss, metrics) in make_model.",
            name="make_model",
            received=model.name,
        )
    if not model.weights or not model.built:
        raise ConfigError(
            f"make_model returned the model {model.name!r}, which has no weights yet. "
            "Begin it with keras.Input(shape), or call model.build(shape) in make_model.",
            name="make_model",
            received=model.name,
        )
    strategy = type(model.distribute_strategy)
    if any("ParameterServer" in one.__name__ for one in strategy.__mro__):
        raise UnsupportedError(
            f"make_model created the model {model.name!r} under {strategy.__name__}, whose updates come in an order of "
            "their own; those of a federated client must follow from what the server sent. Use a strategy over the "
            "devices of one process, such as MirroredStrategy.",
            name="make_model",
            received=strategy.__name__,
        )
    return model


def _weights_of_layers(model: keras.Model, names: Sequence[str]) -> set[int]:
    layers = {layer.name: layer for layer in model.layers}
    for name in names:
        if name not in layers:
            raise ConfigError(
                f"personal_layers has {name!r}, and the model has the layers {', '.join(layers)}."
                f"{validation.nearest(name, layers)}",
                name="personal_layers",
                received=name,
            )
    return {id(variable) for name in names for variable in layers[name].weights}


def _need_given_weights(optimizer: Any) -> None:
    """Refuse an optimizer that does not begin a training at the weights of the round."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    what = type(inner).__name__
    if isinstance(inner, keras.optimizers.Ftrl):
        why = "replaces weights by sums of the gradients it has seen, which are none where each round begins anew"
    elif isinstance(inner, keras.optimizers.ScheduleFreeAdamW):
        why = "averages over steps, and keeps weights of its own that are not those of the round"
    else:
        return
    raise ConfigError(
        f"the model is compiled with {what}; a client begins at the weights of the round with a new optimizer, and "
        f"{what} {why}. Take another, such as keras.optimizers.SGD, Adagrad or AdamW.",
        name="optimizer",
        received=what,
    )


def _need_plain_sgd(optimizer: Any) -> None:
    config = optimizer.get_config()
    extras = ("momentum", "weight_decay", "clipnorm", "global_clipnorm", "clipvalue", "use_ema")
    unlike = [name for name in (*extras, "gradient_accumulation_steps") if config.get(name)]
    is_constant = isinstance(config.get("learning_rate"), float)
    if type(optimizer) is not keras.optimizers.SGD or unlike or not is_constant:
        unlike += [] if is_constant else ["a learning rate that changes"]
        what = type(optimizer).__name__ + (f" with {', '.join(unlike)}" if unlike else "")
        raise ConfigError(
            f"the model is compiled with {what}; SCAFFOLD reads gradients from steps, so it needs "
            "keras.optimizers.SGD(learning_rate) and nothing more.",
            name="optimizer",
            received=what,
        )
