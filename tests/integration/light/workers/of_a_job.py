"""Leaves out what `light` leaves out in the processes of a job alone: the notebook around it draws, and loads digits.

The module `starting/sitecustomize.py` imports this one at every start in whose PYTHONPATH both folders are.
"""

import sys
from typing import Any


class LeftOut:
    """Finds nothing but what must not be found."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in ("matplotlib", "sklearn"):
            raise ModuleNotFoundError(f"{name}: left out by tests/integration/light", name=name)


OF_A_JOB = ("process/worker.py", "process/forking.py", "tfdist.launch.pool.worker")
if any(word.endswith(OF_A_JOB) for word in sys.orig_argv):
    sys.meta_path.insert(0, LeftOut)  # type: ignore[arg-type]
