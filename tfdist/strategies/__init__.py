"""Distribution strategies under which plain Keras code gives the numbers of one device.

Each class is a `tf.distribute.Strategy`: build and compile the model inside ``strategy.scope()``, then call ``fit``.
The classes load TensorFlow when they are first touched, not when this package is imported.

Example:
    >>> import tfdist
    >>> import keras
    >>> strategy = tfdist.strategies.from_environment()
    >>> with strategy.scope():
    ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile("sgd", "mse")
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdist.strategies.distribution_strategy import from_distribution
    from tfdist.strategies.factory import create, from_environment, use_logical_cpus
    from tfdist.strategies.mirrored import MirroredStrategy
    from tfdist.strategies.model_parallel import ModelParallelStrategy
    from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy, ShardedDataParallelStrategy
    from tfdist.strategies.parameter_server import ParameterServerStrategy
    from tfdist.strategies.pipeline_strategy import PipelineStrategy
    from tfdist.strategies.ring_strategy import RingStrategy

__all__ = [
    "MirroredStrategy",
    "ModelParallelStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PipelineStrategy",
    "RingStrategy",
    "ShardedDataParallelStrategy",
    "create",
    "from_distribution",
    "from_environment",
    "use_logical_cpus",
]

_MODULES = {
    "MirroredStrategy": "tfdist.strategies.mirrored",
    "ModelParallelStrategy": "tfdist.strategies.model_parallel",
    "MultiWorkerMirroredStrategy": "tfdist.strategies.multi_worker_mirrored",
    "ParameterServerStrategy": "tfdist.strategies.parameter_server",
    "PipelineStrategy": "tfdist.strategies.pipeline_strategy",
    "RingStrategy": "tfdist.strategies.ring_strategy",
    "ShardedDataParallelStrategy": "tfdist.strategies.multi_worker_mirrored",
    "create": "tfdist.strategies.factory",
    "from_distribution": "tfdist.strategies.distribution_strategy",
    "from_environment": "tfdist.strategies.factory",
    "use_logical_cpus": "tfdist.strategies.factory",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
