"""Faulty engines, for the benchmark's workers in its tests."""

from collections.abc import Callable

import tensorflow as tf

from tfdist.bench.all_reduce import reducing_workers as engines


def wrong_elements_without_a_sum(elements: list[int]) -> int:
    """An engine that hands back what it was given."""

    def broken(tensors: list[tf.Variable]) -> Callable[[], tuple[list[tf.Tensor], float, float]]:
        return lambda: ([tf.identity(tensor) for tensor in tensors], 0.0, 1.0)

    engines._horovod = broken
    return engines.prepare("horovod", elements, warm_up=1)


def wrong_elements_of_a_sum_out_of_place(elements: list[int]) -> int:
    """An engine that sums right, and puts every element one further."""

    def broken(tensors: list[tf.Variable]) -> Callable[[], tuple[list[tf.Tensor], float, float]]:
        sums = [
            sum(engines.values(count, tensor=tensor, worker=worker) for worker in (0, 1))
            for tensor, count in enumerate(elements)
        ]
        return lambda: ([tf.roll(tf.constant(total), 1, axis=0) for total in sums], 0.0, 1.0)

    engines._horovod = broken
    return engines.prepare("horovod", elements, warm_up=1)
