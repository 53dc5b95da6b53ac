"""The sharding of a weight under ZeRO stage 3: each worker has a range of its elements.

Its gradient is that of the whole: the reduction of gradients cuts it and adds it up, as where weights are whole. So
nothing is summed here.

Source: S. Rajbhandari, J. Rasley, O. Ruwase, Y. He, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", 2020. There the weights of a layer are gathered at once; here each by itself, as many ahead as fit a window.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfdist.collectives.traced import TracedCollective
from tfdist.compat.tensorflow.meshes.weight_gathering import Gathers
from tfdist.errors import UnsupportedError
from tfdist.gradients.sharding.variable_parts import Stretch
from tfdist.training.replica import current_step


class StretchSharding:
    """A weight of which each worker has a stretch, see `compat.tensorflow.meshes.sharded.Sharding`."""

    #: no two workers have the same element
    is_first = True
    is_cut = True
    layout = ("elements",)
    axes = ("elements",)
    #: within the bounds: all
    elements: tuple[int, int] | None = None

    def __init__(
        self,
        traced: TracedCollective,
        waiting: Callable[[str], AbstractContextManager[None]],
        gathers: Gathers,
        shape: Sequence[int],
        dtype: tf.DType,
        path: str,
    ) -> None:
        self.shape = tuple(int(size) for size in shape)
        self.path = path
        #: what collectives call it, which must be the same on all workers
        self.label = path
        self._traced = traced
        self._waiting = waiting
        self._gathers = gathers
        self._stretch = Stretch(self.shape, traced.rank, traced.size)
        self.local_shape = self._stretch.shape
        #: of the flattened weight
        self.bounds = (self._stretch.bounds,)
        gathers.expect(self._stretch.count * dtype.size)

    def read(self, variable: Any) -> tf.Tensor:
        """Return the weight of which a variable has this worker's part; a step gathers it in its turn."""
        return self._gathers.read(variable, self.whole)

    def whole(self, part: tf.Tensor) -> tf.Tensor:
        """Return the weight."""
        current = current_step.current()
        if current is not None and current.is_one_program:
            raise UnsupportedError(
                f"jit_compile is True, and the weight {self.path!r} lies in parts on several workers, which a program "
                "of XLA cannot gather: it is made for one device. Pass jit_compile=False to model.compile(), or take "
                "stage 2.",
                name="jit_compile",
                received=self.path,
            )
        what = f"the gathering of {self.label}"
        asked = f"{what}, which every worker has to ask for,"
        with self._waiting(asked) if tf.executing_eagerly() else tf.name_scope(""):
            rows = self._traced.all_gather(self._stretch.padded(part), what)
        return self._stretch.joined(tf.reshape(rows, [self._traced.size, self._stretch.width]))

    def assembled(self, shardings: Sequence[Any], parts: Sequence[tf.Tensor]) -> tf.Tensor:
        """Return the weight of which this worker has one part."""
        (part,) = parts
        return self.whole(part)

    def cut(self, whole: Any) -> Any:
        """Return this worker's part of a tensor or an array of the whole's shape."""
        begin, end = self._stretch.bounds
        return (whole.reshape(-1) if hasattr(whole, "reshape") else tf.reshape(whole, [-1]))[begin:end]

    def drawn(self, stretch: Callable[[int, int], tf.Tensor]) -> tf.Tensor:
        """Return this worker's part of numbers of which any stretch can be made."""
        return stretch(*self._stretch.bounds)

    def total(self, tensors: Sequence[tf.Tensor], axes: Iterable[str] | None = None) -> list[tf.Tensor]:
        """Return the sums of what workers have."""
        del axes
        return self._traced.all_reduce(tensors, [f"parts of {self.label}"] * len(tensors))
