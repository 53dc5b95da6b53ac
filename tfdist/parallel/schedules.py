"""The name that `tfdist.planner.schedules` had before 0.2; it goes with 0.3."""

from tfdist.lazy_exports import moved

__getattr__ = moved(__name__, "tfdist.planner.schedules")
