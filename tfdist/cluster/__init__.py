"""The identity of this process in a cluster, and ports for local workers; loads no TensorFlow.

Example:
    >>> from_environment({}).num_workers
    1
"""

from tfdist.cluster import ports
from tfdist.cluster.cluster_environment import from_environment
from tfdist.cluster.cluster_values import Cluster, TaskId

__all__ = ["Cluster", "TaskId", "from_environment", "ports"]
