"""The name of `tfdist.jobs` before 0.2, which 0.3 removes."""

from tfdist.lazy_exports import moved

__getattr__ = moved(__name__, "tfdist.jobs")
