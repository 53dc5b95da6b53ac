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

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:
    from tfdist.gradients.outer.meeting_schedules import DiLoCo, ElasticAveraging, Gossip, LocalSGD, PostLocalSGD
    from tfdist.strategies.factory import create, from_distribution, from_environment, use_logical_cpus
    from tfdist.strategies.mirrored import MirroredStrategy
    from tfdist.strategies.model_parallel import ModelParallelStrategy
    from tfdist.strategies.multi_worker_mirrored import MultiWorkerMirroredStrategy, ShardedDataParallelStrategy
    from tfdist.strategies.parameter_server import ParameterServerStrategy
    from tfdist.strategies.pipeline_strategy import PipelineStrategy
    from tfdist.strategies.ring_strategy import RingStrategy

__all__ = [
    "DiLoCo",
    "ElasticAveraging",
    "Gossip",
    "LocalSGD",
    "MirroredStrategy",
    "ModelParallelStrategy",
    "MultiWorkerMirroredStrategy",
    "ParameterServerStrategy",
    "PipelineStrategy",
    "PostLocalSGD",
    "RingStrategy",
    "ShardedDataParallelStrategy",
    "create",
    "from_distribution",
    "from_environment",
    "use_logical_cpus",
]

__getattr__, __dir__ = exported(__name__, __file__)
