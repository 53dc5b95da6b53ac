"""What tests of distributed training need: functions run in real worker processes, under deadlines; faults on purpose.

Example:
    >>> from tfdist.testing import FaultPlan, pool
    >>> pool.WorkerPool.__name__, FaultPlan.of('[{"kind": "kill"}]').restarts
    ('WorkerPool', 1)
"""

from tfdist.monitor.fault_plan import Fault, FaultPlan

__all__ = ["Fault", "FaultPlan"]
