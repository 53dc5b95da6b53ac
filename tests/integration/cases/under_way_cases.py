"""Notes of collectives in a process that has two threads of TensorFlow's."""

import threading

import numpy as np
import tensorflow as tf

from tfdist.collectives.in_flight import UnderWay
from tfdist.native import stamp_ops


def two_replicas(timeout_seconds: float) -> tuple[list[list[float]], str]:
    """Run a function with a condition for each replica, in which they meet; return results, and what is noted then."""
    library = stamp_ops.stamp_ops()
    assert library is not None
    under_way = UnderWay(library)
    barrier = threading.Barrier(2)
    tokens = [tf.Variable(0.0) for _ in range(2)]  # of each replica: its collectives follow each other

    def meets(values: np.ndarray) -> np.ndarray:
        barrier.wait(timeout_seconds)
        return values

    def replica(number: int, tensor: tf.Tensor) -> tf.Tensor:
        def reduced() -> tf.Tensor:
            tokens[number].assign_add(1.0)
            run = lambda: [tf.numpy_function(meets, [tensor], tf.float32, stateful=False)]  # noqa: E731
            return under_way.noted(f"all_reduce {number}", "/device:CPU:0", [tensor], run)[0]

        return tf.cond(tensor[0] > 0, reduced, lambda: tensor)

    step = tf.function(lambda tensor: [replica(number, tensor) for number in range(2)], autograph=False)
    return [one.numpy().tolist() for one in step(tf.ones([2]))], under_way.text()
