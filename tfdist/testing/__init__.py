"""Tools for tests of distributed training: real worker processes under deadlines, and planned faults.

Example:
    >>> from tfdist.testing import FaultPlan, pool
    >>> pool.WorkerPool.__name__, FaultPlan.of('[{"kind": "kill"}]').restarts
    ('WorkerPool', 1)
"""

from tfdist.lazy_exports import modules
from tfdist.monitor.fault_plan import FaultPlan
from tfdist.monitor.faults import Fault

__all__ = ["Fault", "FaultPlan"]

__getattr__ = modules(__name__)
