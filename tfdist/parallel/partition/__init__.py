"""The division of a model over devices: costs of layers, the best stages, and the predicted step time.

Planning loads no TensorFlow; measuring a model does.

Example:
    >>> from tfdist.parallel import partition
    >>> partition.Link.parse("10gbit").bytes_per_second
    1250000000.0
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.parallel.partition.plan_model import stages_by
    from tfdist.parallel.partition.profile_model import profile as measure
    from tfdist.planner.device_kinds import DeviceKind
    from tfdist.planner.division_plans import Plan, Report, plans
    from tfdist.planner.layer_profile import LayerProfile, Profile, read
    from tfdist.planner.planner_link import Link
    from tfdist.planner.stage_cost import Memory, Setting, Stage
    from tfdist.planner.stage_search import best_stages
    from tfdist.planner.step_time import Prediction, predict
    from tfdist.planner.tensor_layouts import TensorLayouts, layouts

__all__ = [
    "DeviceKind",
    "LayerProfile",
    "Link",
    "Memory",
    "Plan",
    "Prediction",
    "Profile",
    "Report",
    "Setting",
    "Stage",
    "TensorLayouts",
    "best_stages",
    "layouts",
    "measure",
    "plans",
    "predict",
    "read",
    "stages_by",
]

__getattr__, __dir__ = exported(__name__, __file__)
