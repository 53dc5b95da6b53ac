"""The edges of shares that move while an input is read: a tensor that the input's graph reads for each batch."""

import itertools

import numpy as np
import tensorflow as tf

from tfdist.cluster.shares import Shares

_numbers = itertools.count()


class Edges:
    """The present `Shares.edges`, int32 of one more than replicas."""

    def __init__(self, shares: Shares) -> None:
        self._length = len(shares.edges)
        with tf.init_scope(), tf.device("/device:CPU:0"):  # no variable of a strategy's, and of no model's
            name = f"tfdist_edges_{next(_numbers)}"
            self._handle = tf.raw_ops.VarHandleOp(dtype=tf.int32, shape=[self._length], shared_name=name)
        self.assign(shares)

    def assign(self, shares: Shares) -> None:
        with tf.init_scope(), tf.device("/device:CPU:0"):
            value = tf.constant(np.array(shares.edges, np.int32))
            tf.raw_ops.AssignVariableOp(resource=self._handle, value=value)

    def read(self) -> tf.Tensor:
        """The edges, in a graph: those at the time when it runs."""
        found = tf.raw_ops.ReadVariableOp(resource=self._handle, dtype=tf.int32)
        return tf.ensure_shape(found, [self._length])
