"""Lets Keras build a model, its optimizer and its metrics on one device before the first step is traced, in workers of
pools.

Keras does so under a strategy. Without one it leaves it to the trace, and TensorFlow traces a function that makes
variables twice, with a condition around each of their first values: half of what a short training takes. The numbers,
with which strategies are compared there, are the same. Scripts and jobs run as users' do.
"""

import functools
import inspect
from typing import Any

from keras.src.backend.tensorflow import trainer

from tfdist.compat.keras import keras_trainer
from tfdist.compat.tensorflow import tf_data

_kept = trainer.TensorFlowTrainer._maybe_symbolic_build
assert "self._distribute_strategy is None" in inspect.getsource(_kept), "what builds models has changed"


@functools.wraps(_kept)
def _built(model: Any, iterator: Any = None, data_batch: Any = None) -> None:
    if model._distribute_strategy is not None or model.run_eagerly or iterator is None:
        _kept(model, iterator=iterator, data_batch=data_batch)
    elif not keras_trainer.is_built(model):
        spec = keras_trainer.input_of(iterator).element_spec
        keras_trainer.symbolic_build(model, tf_data.without_nones(spec))


trainer.TensorFlowTrainer._maybe_symbolic_build = _built
