"""A script for `horovodrun` that trains the model of the recovery benchmark in the loop of Horovod's elastic guide.

python -m benchmarks.jobs.recovery_horovod FOLDER MEGABYTES BATCH_SIZE STEPS

The loop is written by hand with TensorFlowState, because Horovod's state of a Keras model calls
`optimizer.variables()`, which Keras 3 no longer has. The state is committed after every step, as the guide recommends
for the fewest repeated steps.
"""

import os
import sys
from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf

from benchmarks.jobs.recovery_fit import examples, note, note_size, perceptron, variables
from tfdist.monitor import faults


class _State(hvd.elastic.TensorFlowState):
    """A state that notes when the loss of a worker is noticed."""

    notes = ""

    def restore(self) -> None:
        note(self.notes, "noticed")
        super().restore()


def main(folder: str, megabytes: float, batch_size: int, steps: int) -> None:
    """Train for the given number of steps."""
    notes = f"{folder}/notes"
    hvd.init()
    os.environ["TFDIST_WORKER_INDEX"] = str(hvd.rank())  # for the plan of faults
    model = perceptron(megabytes)
    if hvd.rank() == 0:
        note_size(notes, model)
    rows = tf.constant(examples(model, batch_size))
    parts = tf.split(rows, hvd.size())  # equal ones
    x = parts[hvd.rank()]
    weights = [variable.value for variable in model.trainable_variables]  # Horovod asks for TensorFlow's

    @tf.function
    def one_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(x, training=True) - x))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(loss, weights)
        model.optimizer.apply(gradients, model.trainable_variables)

    @hvd.elastic.run
    def train(state: Any) -> None:
        is_first = True
        while state.step < steps:
            faults.at("step", state.step)
            one_step()
            if is_first:
                note(notes, "stepping", rank=hvd.rank(), workers=hvd.size(), step=state.step)
                is_first = False
            state.step += 1
            state.commit()

    state = _State(variables=variables(model), step=0)
    _State.notes = notes
    train(state)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
