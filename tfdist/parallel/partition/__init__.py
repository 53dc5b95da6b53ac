"""Divide a model over devices: costs of layers, the best stages, and the predicted step time.

Planning loads no TensorFlow; measuring a model does.

Example:
    >>> from tfdist.parallel import partition
    >>> partition.Link.parse("10gbit").bytes_per_second
    1250000000.0
"""

import importlib
from typing import TYPE_CHECKING, Any

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

_WHERE = {
    "DeviceKind": "tfdist.planner.device_kinds",
    "LayerProfile": "tfdist.planner.layer_profile",
    "Link": "tfdist.planner.planner_link",
    "Memory": "tfdist.planner.stage_cost",
    "Plan": "tfdist.planner.division_plans",
    "Prediction": "tfdist.planner.step_time",
    "Profile": "tfdist.planner.layer_profile",
    "Report": "tfdist.planner.division_plans",
    "Setting": "tfdist.planner.stage_cost",
    "Stage": "tfdist.planner.stage_cost",
    "best_stages": "tfdist.planner.stage_search",
    "measure": "tfdist.parallel.partition.profile_model",
    "plans": "tfdist.planner.division_plans",
    "predict": "tfdist.planner.step_time",
    "read": "tfdist.planner.layer_profile",
    "stages_by": "tfdist.parallel.partition.plan_model",
    "TensorLayouts": "tfdist.planner.tensor_layouts",
    "layouts": "tfdist.planner.tensor_layouts",
}

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


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(_WHERE[name])
    return getattr(module, "profile" if name == "measure" else name)


def __dir__() -> list[str]:
    return sorted(__all__)
