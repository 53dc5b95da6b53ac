"""Jobs on clusters that other software manages, started from a program. `tfdist.engines.ray` has a `Trainer`."""

from tfdist.lazy_exports import modules

__all__: list[str] = []

__getattr__ = modules(__name__)
