"""What the graph adds to a step, measured alone: a function that has the stamps of a step and nothing else of it.

Where nothing computes, nothing hides a stamp, so what such a function takes longer than one without stamps is at least
what they add to a step; and noise is that of some hundred microseconds, not of a step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.bench.workers.models import MODELS
from tfdist.monitor.recording.graph import Rows, Stamps
from tfdist.monitor.recording.rows import NORM_EVERY, Column
from tfdist.training.reduction import norms
from tfdist.training.stamping import new_rows

__all__ = ["Graphs"]

# calls of each function in a turn: as many times the norm is measured
_NORMS = 5


class Graphs:
    """Functions that stamp the gradients of a model: none, all stamps, and the norm of the gradient as well.

    Args:
        model: a name from `MODELS`, whose weights say how many gradients there are, and how large.
        reductions: of a step of this model, as many as are stamped.

    Example:
        >>> Graphs("small", reductions=1).added()                                        # doctest: +SKIP
        {'stamps': 2.1e-05, 'everything': 4.2e-05}
    """

    def __init__(self, model: str, *, reductions: int) -> None:
        shapes = [tuple(weight.shape) for weight in MODELS[model].build().trainable_variables]
        gradients = [tf.random.stateless_normal(shape, (number, 1)) for number, shape in enumerate(shapes)]
        rows = new_rows()
        self._calls: Mapping[str, Callable[[], Any]] = {
            "nothing": _function(gradients, reductions, None, has_norm=False),
            "stamps": _function(gradients, reductions, rows, has_norm=False),
            "everything": _function(gradients, reductions, rows, has_norm=True),
        }
        for call in self._calls.values():
            call()  # traced

    def added(self) -> dict[str, float]:
        """Return the seconds that a call takes longer with stamps, and with the norm too, than with none."""
        taken = {}
        for arm, call in self._calls.items():
            began = time.perf_counter()
            for _ in range(_NORMS * NORM_EVERY):
                call()
            taken[arm] = (time.perf_counter() - began) / (_NORMS * NORM_EVERY)
        return {arm: taken[arm] - taken["nothing"] for arm in taken if arm != "nothing"}


def _function(
    gradients: Sequence[tf.Tensor], reductions: int, rows: Rows | None, *, has_norm: bool
) -> Callable[[], Any]:
    loss = tf.constant(1.0)

    def step(stamps: Stamps | None) -> tf.Tensor:
        found = [tf.identity(one) for one in gradients]
        if stamps is not None:
            stamps.loss(loss)
            stamps.mark(Column.GRADIENTS, found)
            for bucket in range(reductions):
                stamps.reduction(found[bucket::reductions], lambda bucket=bucket: found[bucket::reductions])  # type: ignore[misc]
            stamps.mark(Column.REDUCED, found)
            if has_norm:
                stamps.gradient_norm(norms.all_squares, found)
        return tf.reduce_sum(tf.reshape(found[0], [-1])[:1])

    @tf.function(autograph=False)
    def stamped() -> tf.Tensor:
        if rows is None:
            return step(None)
        with Stamps(rows) as stamps:
            returned = step(stamps)
            stamps.end()
            return returned

    return stamped
