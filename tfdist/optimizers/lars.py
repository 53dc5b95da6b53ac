"""Layer-wise adaptive rate scaling: an optimizer for large batches."""

import logging
import re
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfdist import validation
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.errors import ConfigError, ConfigTypeError, UnsupportedError

_logger = logging.getLogger("tfdist")

# What Keras' layers call biases and the weights of normalization. Most are vectors; those of attention, of recurrent
# cells and of normalization over several axes are not.
_NOT_ADAPTED_NAMES = ("bias", "gamma", "beta", "scale")
_SHOWN = 6
# such as "(?i)", which Python takes at the beginning of a pattern alone
_FLAGS = re.compile(r"(?:\(\?[a-zA-Z]+\))*")


@keras.saving.register_keras_serializable("tfdist")
class LARS(keras.optimizers.Optimizer):
    """Momentum whose step in each layer is proportional to the size of the layer's weights.

    For a weight w with gradient g, learning rate eta, momentum m and weight decay b:

        lambda = trust * |w| / (|g| + b |w| + epsilon), and 1 where |w| or |g| is 0
        v <- m v + eta lambda (g + b w)
        w <- w - v                       with nesterov: w - (m v + eta lambda (g + b w))

    Norms are over the whole variable. Biases and the weights of normalization layers are not adapted and not decayed:
    lambda = 1 and b = 0. These are the variables with fewer than two dimensions, and those that are themselves named
    bias, gamma, beta or scale; the names of the layers around them do not matter. When it is built, the optimizer logs
    which variables it leaves out. Gradients are reduced, unscaled and clipped before, as for every optimizer in a
    tfdist scope.

    With ``momentum_correction`` the velocity excludes the learning rate, w <- w - eta v, so that a change of the rate
    acts on all of it at once. In the paper's form, above, past gradients keep the rate of their own step. With a
    constant rate both are the same.

    Args:
        learning_rate: eta, a number or a schedule. It is larger than for SGD, because lambda is small.
        momentum: m, the momentum.
        weight_decay: b, added to the gradient, as in the paper (not decoupled).
        trust_coefficient: trust, the factor of lambda.
        epsilon: a small number that keeps the divisor of lambda above zero.
        nesterov: whether the step looks ahead (Nesterov momentum).
        momentum_correction: whether the velocity excludes the learning rate, see above.
        exclude: regular expressions for the variables that are not adapted, instead of those above. Each must match one
            or more whole parts of a variable's path: ``"bias"`` matches ``dense/bias`` and not
            ``unbiased_dense/kernel``, and ``"encoder/.*"`` all of that layer. An empty list adapts everything.
        name: the name of the optimizer.
        **options: options of every Keras optimizer: clipnorm, global_clipnorm, use_ema and so on.

    Raises:
        ConfigError: a number is out of its range, or a pattern is no regular expression.
        ConfigTypeError: ``exclude`` is no list of texts.

    Example:
        >>> import keras
        >>> optimizer = LARS(4.0, weight_decay=1e-4)
        >>> keras.optimizers.deserialize(keras.optimizers.serialize(optimizer)).momentum
        0.9

    Source: Y. You, I. Gitman, B. Ginsburg, "Large Batch Training of Convolutional Networks", 2017. The paper does not
    mention excluded variables; later reports of its authors and MLPerf exclude them.
    """

    def __init__(
        self,
        learning_rate: Any = 1.0,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 0.001,
        epsilon: float = 1e-9,
        nesterov: bool = False,
        momentum_correction: bool = False,
        exclude: Sequence[str] | None = None,
        name: str = "lars",
        **options: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, name=name, **options)
        validation.number("momentum", momentum, minimum=0, maximum=1)
        validation.number("weight_decay", weight_decay, minimum=0)
        validation.number("trust_coefficient", trust_coefficient, above=0)
        validation.number("epsilon", epsilon, minimum=0)
        self.momentum = momentum
        self.decay = weight_decay  # Keras' own `weight_decay` is decoupled
        self.trust_coefficient = trust_coefficient
        self.epsilon = epsilon
        self.nesterov = nesterov
        self.momentum_correction = momentum_correction
        self._patterns = None if exclude is None else _compiled(exclude)
        self.exclude = None if exclude is None else list(exclude)
        self.velocities: list[Any] = []
        self._adapted: list[bool] = []

    def build(self, variables: Sequence[keras.Variable]) -> None:
        """Make a velocity for each variable."""
        if self.built:
            return
        super().build(variables)
        self.velocities = self.add_optimizer_variables(variables, "velocity")
        # here, because an update may be handed the backend's variable, which has no path
        self._adapted = [not self._is_excluded(one) for one in variables]
        if getattr(tf.distribute.get_strategy(), "is_chief", True):
            self._say_what_is_excluded([variable.path for variable in variables])

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Refuse to leave variables out of the weight decay; use ``exclude`` instead.

        Args:
            var_list: the variables, as in Keras.
            var_names: the names of variables, as in Keras.
        Raises:
            UnsupportedError: always.
        """
        raise UnsupportedError(
            "exclude_from_weight_decay() is called on LARS, whose decay is a part of the gradient that it adapts; the "
            "method would change nothing. Pass patterns instead: "
            f"LARS(exclude={[*(self.exclude or _NOT_ADAPTED_NAMES), 'embeddings']!r})."
        )

    def update_step(self, gradient: Any, variable: keras.Variable, learning_rate: Any) -> None:
        """Update a variable and its velocity."""
        ops = keras.ops
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        index = keras_optimizer.index_of(self, variable)
        velocity, change = self.velocities[index], gradient
        if self._adapted[index]:
            change = (gradient + self.decay * variable) * self._ratio(gradient, variable)
        step = change if self.momentum_correction else rate * change
        new = self.momentum * velocity + step
        self.assign(velocity, new)
        ahead = self.momentum * new + step if self.nesterov else new
        self.assign_sub(variable, rate * ahead if self.momentum_correction else ahead)

    def _is_excluded(self, variable: keras.Variable) -> bool:
        if self._patterns is not None:
            return any(pattern.search(variable.path) for pattern in self._patterns)
        return len(variable.shape) < 2 or variable.path.rpartition("/")[2] in _NOT_ADAPTED_NAMES

    def _say_what_is_excluded(self, paths: list[str]) -> None:
        excluded = [path for path, adapted in zip(paths, self._adapted, strict=True) if not adapted]
        if excluded:
            more = f" and {len(excluded) - _SHOWN} more" if len(excluded) > _SHOWN else ""
            _logger.warning(
                "LARS adapts %d of %d variables; not adapted and not decayed: %s%s.",
                len(paths) - len(excluded),
                len(paths),
                ", ".join(excluded[:_SHOWN]),
                more,
            )
        for pattern, compiled in zip(self.exclude or (), self._patterns or (), strict=True):
            inside = next((path for path in paths if re.search(pattern, path)), None)
            if inside is not None and not any(compiled.search(path) for path in paths):
                _logger.warning(
                    "LARS: exclude has %r, which matches no whole part of a path and excludes nothing; it is found "
                    "inside %s. To exclude that, pass %r.",
                    pattern,
                    inside,
                    _between(".*", pattern, ".*"),
                )

    def _ratio(self, gradient: Any, variable: keras.Variable) -> Any:
        ops = keras.ops
        # in float32, because squares of float16 overflow at 256
        of_weight = ops.norm(ops.reshape(ops.cast(variable, "float32"), [-1]))
        of_gradient = ops.norm(ops.reshape(ops.cast(gradient, "float32"), [-1]))
        ratio = self.trust_coefficient * of_weight / (of_gradient + self.decay * of_weight + self.epsilon)
        usable = ops.logical_and(of_weight > 0.0, of_gradient > 0.0)
        return ops.cast(ops.where(usable, ratio, 1.0), variable.dtype)

    def get_config(self) -> dict[str, Any]:
        """Return the JSON from which the same optimizer can be made again."""
        return {
            **super().get_config(),
            "momentum": self.momentum,
            "weight_decay": self.decay,
            "trust_coefficient": self.trust_coefficient,
            "epsilon": self.epsilon,
            "nesterov": self.nesterov,
            "momentum_correction": self.momentum_correction,
            "exclude": None if self.exclude is None else list(self.exclude),
        }


def _compiled(exclude: Any) -> list[re.Pattern[str]]:
    # a text is a sequence of texts too, of its letters, which are in nearly every path
    if not isinstance(exclude, (list, tuple)) or not all(isinstance(one, str) for one in exclude):
        raise ConfigTypeError(
            f"exclude is {validation.shown(exclude)} ({type(exclude).__name__}); it must be a list of patterns, "
            f"such as {list(_NOT_ADAPTED_NAMES)}, or None for biases and the weights of normalization."
        )
    patterns = []
    for pattern in exclude:
        try:
            re.compile(pattern)  # by itself: the brackets below must not complete it
            patterns.append(re.compile(_between("(?:^|/)(?:", pattern, ")(?:/|$)")))
        except re.error as error:
            raise ConfigError(
                f"exclude has {pattern!r}, which is not a regular expression ({error}). Write a backslash before a "
                "sign that is meant as it is: re.escape() does that."
            ) from None
    return patterns


def _between(before: str, pattern: str, after: str) -> str:
    """Return a pattern with something before and after it, except before its flags.

    Example:
        >>> _between(".*", "(?i)bias", ".*")
        '(?i).*bias.*'
    """
    rest = _FLAGS.sub("", pattern, count=1)
    return f"{pattern.removesuffix(rest)}{before}{rest}{after}"
