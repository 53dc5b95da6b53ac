"""Jobs on clusters that other software manages, started from a program. `tfdist.engines.ray` has a `Trainer`."""

__all__: list[str] = []
