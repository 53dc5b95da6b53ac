"""Right, fast and fault-tolerant Keras training on every TensorFlow distribution strategy.

Subpackages load when they are first used: ``import tfdist`` loads no TensorFlow, sets no variable, changes nothing.

Example:
    >>> import tfdist
    >>> len(tfdist.cluster.ports.free_ports(2))
    2
"""

import importlib
import pkgutil
from typing import Any

__version__ = "0.2.0"

_WHERE = {"reproducible": "reproducibility"}  # public functions of the package itself

# Lower packages import or start these by their names alone. They are named here, where all parts may be known.
#: the modules that a process imports before workers are forked from it, as far as they are installed
PRELOADED = (
    "tensorflow",
    "keras",
    "tfdist.strategies.factory",
    "tfdist.strategies.multi_worker_mirrored",
    "tfdist.strategies.ring_strategy",
    "tfdist.strategies.parameter_server",
    "tfdist.collectives.backends.horovod_collective",
    "tfdist.callbacks.backup_and_restore",
)
#: the program that compares a step of two replicas with that of one device, for versions that were not tested
STEP_PROGRAM = "tfdist.verify.one_step"


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    if not name.startswith("_"):
        qualified = f"{__name__}.{name}"
        try:
            return importlib.import_module(qualified)
        except ModuleNotFoundError as error:
            if error.name != qualified:  # the subpackage exists, something that it needs does not: say that
                raise
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    found = {module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")}
    return sorted(found | {"__version__", *_WHERE})
