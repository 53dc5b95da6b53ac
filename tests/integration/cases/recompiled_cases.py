"""A model of workers that meet seldom, which is compiled again with other weights to train; beside a simulation."""

from typing import Any

import keras
import numpy as np
from synchronization_cases import BATCH, RANK, Simulation, X, Y, flat, network, strategy

from tfdist.gradients.outer import meeting_schedules

PER_EPOCH = -(-len(X) // BATCH)


def compiled_again(text: str) -> dict[str, Any]:
    """Train all layers but the first, with moving averages, and then all; return the ends of both, and simulations."""

    def optimizer() -> keras.optimizers.Optimizer:
        return keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.7)

    def compiled(model: keras.Model, *, trains_first: bool) -> None:
        model.layers[0].trainable = trains_first
        model.compile(optimizer(), "mse")

    with strategy(text).scope():
        model = network("sgd")
    ends = []
    for trains_first in (False, True):
        with strategy(text).scope():
            compiled(model, trains_first=trains_first)
        model.fit(X, Y, batch_size=BATCH, shuffle=False, verbose=0)
        ends.append(flat(model.get_weights()))
    if RANK:
        return {"ends": ends}
    simulation, schedule = Simulation("sgd"), meeting_schedules.require(text)
    assert schedule is not None
    steps, simulated = 0, []
    for trains_first in (False, True):
        for one in simulation.models:
            compiled(one, trains_first=trains_first)
            one.optimizer.build(one.trainable_variables)
        met = [bool(schedule.events(steps + number)) for number in range(1, PER_EPOCH + 1)]

        def after(step: int, met: list[bool] = met) -> None:
            if met[step - 1]:
                simulation.average(moments=False)

        simulation.run(1, after)
        steps += PER_EPOCH
        trained = [one.trainable_variables for one in simulation.models]
        kept = [one.optimizer._model_variables_moving_average for one in simulation.models]
        for variables, averages in zip(zip(*trained, strict=True), zip(*kept, strict=True), strict=True):
            mean = np.mean([average.numpy() for average in averages], axis=0)
            for variable in variables:  # as Keras overwrites weights at the end
                variable.assign(mean)
        simulated.append(simulation.mean())
    return {"ends": ends, "simulated": simulated}
