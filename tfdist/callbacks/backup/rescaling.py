"""The learning rate of a training that goes on with another global batch, by the rules of `tfdist.optimizers`."""

import logging

import keras

from tfdist.compat.keras import keras_trainer as keras_model
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.errors import ConfigError
from tfdist.optimizers.learning_rates import factor

_logger = logging.getLogger("tfdist")


def apply(rule: str, model: keras.Model, *, before: int | None, now: int | None, tell: bool = True) -> None:
    """Multiply the learning rates of a model's optimizers, if the global batch is another one."""
    if rule == "none" or before == now is not None:
        return
    if before is None or now is None:
        raise ConfigError(
            f"learning_rate_rule is {rule!r}, and the global batch is not known (before {before}, now {now}). Read "
            "with tfdist.data.read, or pass arrays or batches of a fixed size; or set the rule to 'none'."
        )
    for optimizer in keras_model.optimizers(model):
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
