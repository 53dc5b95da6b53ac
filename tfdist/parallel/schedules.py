"""A deprecated name of `tfdist.planner.schedules`, to be removed in 0.3."""

from tfdist.lazy_exports import moved

__getattr__ = moved(__name__, "tfdist.planner.schedules")
