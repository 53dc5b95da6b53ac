"""Forward to `tfdist.planner.schedules`, the name of this package since 0.2; this one goes with 0.3."""

import importlib
import warnings


def __getattr__(name: str) -> object:
    schedules = importlib.import_module("tfdist.planner.schedules")
    if name.startswith("__") or not hasattr(schedules, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{__name__}.{name} is tfdist.planner.schedules.{name} now.", DeprecationWarning, stacklevel=2)
    return getattr(schedules, name)
