"""The check, before a first prediction, that outputs for a row depend on that row alone.

A step is tried on rows of the first batch. `predict` has a graph that takes its batches itself, so here rows are made
up, in the shapes of the input: positive fractions, zeros and ones, and texts of one word and more. All workers make the
same ones, and take nothing from the input. What the user's `predict_step` makes of a batch is compared in the same way.
"""

import logging
from collections.abc import Callable
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import keras_trainer
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.training.checks import advice, row_mixing, step_probe, tried_step
from tfdist.training.epoch import Layout

_ROWS = 6
# of an axis whose length the input does not tell
_UNTOLD = 3

_log = logging.getLogger("tfdist")


class _ExchangesError(Exception):
    """Raised where a model asks other replicas for rows, as one that compares them should."""


class Look:
    """The look at a model before it predicts on several replicas, once."""

    def __init__(self, model: keras.Model, strategy: Any, workers: Workers, *, is_due: bool) -> None:
        self._model = model
        self._strategy = strategy
        self._workers = workers
        self._is_due = is_due and tf_strategies.replica_count(strategy) > 1

    def __call__(self, layout_of: Callable[[], Layout]) -> None:
        """Warn if the outputs for rows of a layout differ when other rows are left out; every worker must call."""
        if not self._is_due:
            return
        self._is_due = False
        if not (kinds := _kinds(self._model)):
            return
        with step_clock().during(Phase.TRACE):  # it takes the time of a trace, and runs the user's code
            layout = layout_of()
            found = [_mixes(self._model, self._strategy, layout, kind) for kind in kinds]
        seen = self._workers.gather([int(one) for one in found]).max(axis=0)
        for kind, names in (pair for pair, is_found in zip(kinds.items(), seen, strict=True) if is_found):
            step_probe.warn_once(self._model, self._workers, advice.of(kind, ", ".join(names), self._model))
            return


def mixes(model: keras.Model, strategy: Any, layout: Layout) -> bool:
    """Return whether the outputs for made-up rows differ when other rows are left out; False if that is unknown."""
    return any(_mixes(model, strategy, layout, kind) for kind in _kinds(model))


def _kinds(model: keras.Model) -> dict[str, list[str]]:
    """Return what may compare rows, its layers or a `predict_step` of its own, with the names of what it is."""
    own = [f"{type(model).__name__}.predict_step"] if keras_trainer.is_own(model, "predict_step") else []
    found = {"layers": row_mixing.suspects(model), "prediction": own}
    return {kind: names for kind, names in found.items() if names}


def _mixes(model: keras.Model, strategy: Any, layout: Layout, kind: str) -> bool:
    """Return the answer of `mixes` for one kind of what may compare rows."""
    if (data := made_up(layout)) is None:
        return False
    how = row_mixing.Pass(
        training=False,
        tolerance=step_probe.tolerance_of_outputs(model),
        meets=any(sharded_variable.sharding_of(weight) is not None for weight in model.weights),
        exchange=_raise,
        step=model.predict_step if kind == "prediction" else None,
    )
    try:
        return row_mixing.mixes(model, strategy, data, how)
    except _ExchangesError:
        return False
    except Exception as error:  # noqa: BLE001 - the user's code, on rows that it is not written for
        tried_step.made_variables(strategy)
        _log.debug("tfdist: whether %r mixes rows could not be tried: %s", model.name, error)
        return False


def made_up(layout: Layout) -> Any:
    """Return a replica's data with a few made-up rows, or None if the layout has other values than numbers and texts.

    Example:
        >>> spec = (tf.TensorSpec([], tf.int32), (tf.TensorSpec([None, 2], tf.float32),))
        >>> (rows,) = made_up(Layout((spec,)))
        >>> rows.shape, bool(tf.reduce_all(rows > 0))
        (TensorShape([6, 2]), True)
    """
    random = np.random.default_rng(0)
    tensors = []
    for spec in layout.part_signature(relaxed=True):
        if not isinstance(spec, tf.TensorSpec) or not spec.shape.rank:
            return None
        if not (spec.dtype.is_floating or spec.dtype.is_integer or spec.dtype == tf.string):
            return None
        shape = [_ROWS, *(_UNTOLD if size is None else size for size in spec.shape[1:])]
        tensors.append(tf.cast(tf.constant(_values(spec.dtype, shape, random)), spec.dtype))
    return layout.part(tensors)


def _values(dtype: tf.DType, shape: list[int], random: np.random.Generator) -> Any:
    """Return made-up values; the texts of a row have one word more than those of the row before."""
    if dtype == tf.string:
        words = [" ".join(["word"] * (row + 1)) for row in range(_ROWS)]
        return np.broadcast_to(np.reshape(words, [_ROWS, *[1] * (len(shape) - 1)]), shape)
    return random.uniform(0.1, 0.9, shape) if dtype.is_floating else random.integers(0, 2, shape)


def _raise(*args: Any, **options: Any) -> NoReturn:
    raise _ExchangesError
