"""SGD in one pass, in a worker process with two logical CPUs."""

from typing import Any

import keras
import tensorflow as tf
from mirrored_cases import STRATEGY, X, Y, model


def copies_of_momenta_and_weights() -> dict[str, Any]:
    """Every copy after two epochs, the same of one device, and how often the op was traced under the strategy."""
    traced: list[Any] = []
    known = tf.raw_ops.ResourceApplyKerasMomentum

    def counted(**arguments: Any) -> Any:
        traced.append(arguments["var"])
        return known(**arguments)

    with STRATEGY.scope():
        ours = model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    tf.raw_ops.ResourceApplyKerasMomentum = counted
    try:
        ours.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    finally:
        tf.raw_ops.ResourceApplyKerasMomentum = known
    plain = model(optimizer=keras.optimizers.SGD(0.1, momentum=0.9))
    plain.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0)
    mirrored, alone = ([*one.trainable_variables, *one.optimizer.momentums] for one in (ours, plain))
    return {
        "traced": len(traced),
        "copies": [[copy.numpy().tolist() for copy in variable.value.values] for variable in mirrored],
        "one": [variable.numpy().tolist() for variable in alone],
    }
