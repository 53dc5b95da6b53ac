"""Forward to `tfdist.jobs`, the name of this package since 0.2; this one goes with 0.3."""

import importlib
import warnings


def __getattr__(name: str) -> object:
    jobs = importlib.import_module("tfdist.jobs")
    if name.startswith("__") or not hasattr(jobs, name):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"tfdist.launch.{name} is tfdist.jobs.{name} now.", DeprecationWarning, stacklevel=2)
    return getattr(jobs, name)
