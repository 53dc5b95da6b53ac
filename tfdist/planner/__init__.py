"""Predictions of the step, time and price of a training before it runs: `tfdist plan` for programs and notebooks.

Loads no TensorFlow; `tfdist.parallel.partition.measure` makes the profile of a model.

Example:
    >>> import tfdist
    >>> report = tfdist.planner.scale("costs.json", workers="1..64", link="10gbit")         # doctest: +SKIP
    >>> [(row.name, row.step.seconds, row.efficiency) for row in report.rows]               # doctest: +SKIP
    [('one device', 0.31, 1.0), ('2 x data', 0.17, 0.91), ...]
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.planner.planner_link import Link
    from tfdist.planner.scaling.job_cost import Cost, Price
    from tfdist.planner.scaling.job_steps import StepTime
    from tfdist.planner.scaling.planned_request import scale
    from tfdist.planner.scaling.scaling_report import Row, ScalingReport

__all__ = ["Cost", "Link", "Price", "Row", "ScalingReport", "StepTime", "scale"]

__getattr__, __dir__ = exported(__name__, __file__)
