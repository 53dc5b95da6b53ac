"""The number of threads that TensorFlow needs for the replicas of a process."""

import os

import tensorflow as tf


def ensure_inter_op(replicas: int) -> None:
    """Give TensorFlow one thread more than there are replicas, if it would have fewer and nobody has said how many.

    A function that makes the iterator of a distributed data set itself blocks a thread for each replica until their
    batches are there, and those need a thread to be made. TensorFlow takes as many threads as there are cores: with
    two replicas on two cores such a function waits for ever, under TensorFlow's own strategies as well. On one core
    there is one thread, which runs what was ready last first: what is to be sent to another process waits until there
    is nothing to compute. A second one takes what waits longest.
    """
    is_set = tf.config.threading.get_inter_op_parallelism_threads() or "TF_NUM_INTEROP_THREADS" in os.environ
    if is_set or len(os.sched_getaffinity(0)) > replicas:
        return
    try:
        tf.config.threading.set_inter_op_parallelism_threads(replicas + 1)
    except RuntimeError:  # TensorFlow has started
        return


def devices_to_come() -> int:
    """Return how many devices a strategy without a list of them will take, without starting TensorFlow."""
    gpus = tf.config.list_physical_devices("GPU")
    (cpu,) = tf.config.list_physical_devices("CPU")
    return len(gpus) or len(tf.config.get_logical_device_configuration(cpu) or [cpu])
