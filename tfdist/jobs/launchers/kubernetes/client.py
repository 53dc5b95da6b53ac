"""The client library of Kubernetes, which is optional."""

import importlib
from typing import Any

from tfdist.errors import MissingDependencyError


def load(name: str = "kubernetes") -> Any:
    """Return the client library, or one that comes with it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingDependencyError(
            "--engine kubernetes needs the client of Kubernetes, which is not installed. Install it: "
            "pip install 'tfdist[kubernetes]'"
        ) from error
