"""The learning rate of a training that goes on with another global batch.

P. Goyal et al., "Accurate, Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, for "linear", which holds for SGD
while the batch is small against the noise of its gradients; A. Krizhevsky, "One weird trick for parallelizing
convolutional neural networks", 2014, for "sqrt", which keeps the variance of an update; adaptive optimizers are used
with it.
"""

import logging
import math
from collections.abc import Callable

import keras

from tfdist import validation
from tfdist.compat import keras_model, keras_optimizer
from tfdist.errors import ConfigError

_RULES: dict[str, Callable[[float], float]] = {"none": lambda ratio: 1.0, "linear": float, "sqrt": math.sqrt}

_logger = logging.getLogger("tfdist")


def require_rule(rule: str) -> None:
    """Raise if a rule is none.

    Raises:
        ConfigError: it is not.
    """
    if rule not in _RULES:
        raise ConfigError(f"learning_rate_rule is {validation.shown(rule)}; it must be one of {', '.join(_RULES)}.")


def factor(rule: str, ratio: float) -> float:
    """Return what a learning rate is multiplied by when the global batch is multiplied by a ratio.

    Example:
        >>> factor("linear", 4.0), factor("sqrt", 4.0), factor("none", 4.0)
        (4.0, 2.0, 1.0)
    """
    return _RULES[rule](ratio)


def apply(rule: str, model: keras.Model, *, before: int | None, now: int | None) -> None:
    """Multiply the learning rates of a model's optimizers, if the global batch is another one.

    Args:
        rule: of the learning rate.
        model: whose optimizers.
        before: the global batch of the state that was restored.
        now: the one that training goes on with.
    Raises:
        ConfigError: the rule needs what is not there: both sizes, and a learning rate that is a number.
    """
    if rule == "none" or before == now is not None:
        return
    if before is None or now is None:
        raise ConfigError(
            f"learning_rate_rule is {rule!r}, and the global batch is not known (before {before}, now {now}). Read "
            "with tfdist.data.read, or pass arrays or batches of a fixed size; or set the rule to 'none'."
        )
    for optimizer in keras_model.optimizers(model):
        rate = keras_optimizer.learning_rate_variable(optimizer)
        if rate is None:
            raise ConfigError(
                f"learning_rate_rule is {rule!r}, and the learning rate of {optimizer.name} follows a schedule; scale "
                "the schedule where it is made, and set the rule to 'none'."
            )
        old = float(rate.numpy())
        rate.assign(old * factor(rule, now / before))
        _logger.info("The global batch was %d and is %d: the learning rate was %g and is %g.", before, now, old, rate)
