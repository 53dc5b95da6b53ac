"""Who this process is in a cluster, and ports for local workers; loads no TensorFlow."""

from tfdist.cluster import ports as ports
