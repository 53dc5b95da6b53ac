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
    from tfdist.parallel.partition.devices import DeviceKind
    from tfdist.parallel.partition.link import Link
    from tfdist.parallel.partition.measuring import profile as measure
    from tfdist.parallel.partition.of_model import stages_by
    from tfdist.parallel.partition.planning import Plan, Report, plans
    from tfdist.parallel.partition.profile import LayerProfile, Profile, read
    from tfdist.parallel.partition.search import best_stages
    from tfdist.parallel.partition.stages import Memory, Setting, Stage
    from tfdist.parallel.partition.step_time import Prediction, predict
    from tfdist.parallel.partition.tensor_layouts import TensorLayouts, layouts

_WHERE = {
    "DeviceKind": "devices",
    "LayerProfile": "profile",
    "Link": "link",
    "Memory": "stages",
    "Plan": "planning",
    "Prediction": "step_time",
    "Profile": "profile",
    "Report": "planning",
    "Setting": "stages",
    "Stage": "stages",
    "best_stages": "search",
    "measure": "measuring",
    "plans": "planning",
    "predict": "step_time",
    "read": "profile",
    "stages_by": "of_model",
    "TensorLayouts": "tensor_layouts",
    "layouts": "tensor_layouts",
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
    module = importlib.import_module(f"tfdist.parallel.partition.{_WHERE[name]}")
    return getattr(module, "profile" if name == "measure" else name)


def __dir__() -> list[str]:
    return sorted(__all__)
