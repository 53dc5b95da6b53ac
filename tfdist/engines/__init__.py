"""Jobs on other engines, started from programs of their users, as `tfdist run --engine` starts a script.

`tfdist.engines.ray` has a `Trainer`.
"""

__all__: list[str] = []
