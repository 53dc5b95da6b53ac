"""Names and modules of a package that load on first use, and old names of packages.

A package imports its names under ``if TYPE_CHECKING:``, for type checkers and the API reference. `exported` reads that
block too, so each name is listed once.
"""

import ast
import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any


def exported(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` of the package whose source is this file; its modules are attributes, too."""
    module_of = modules(package)

    @functools.cache
    def places() -> dict[str, tuple[str, str]]:
        blocks = [node for node in ast.parse(Path(file).read_text(encoding="utf-8")).body if isinstance(node, ast.If)]
        imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
        return {one.asname or one.name: (str(node.module), one.name) for node in imports for one in node.names}

    def load(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name in places():
            module, attribute = places()[name]
            return getattr(importlib.import_module(module), attribute)
        try:
            return module_of(name)
        except AttributeError as error:
            raise AttributeError(f"{error}; it has {', '.join(sorted(places()))}") from None

    return load, lambda: sorted(places())


def modules(package: str) -> Callable[[str], Any]:
    """Make `__getattr__` of a package whose modules load on first use, so that ``import tfdist`` is enough for them."""

    def load(name: str) -> Any:
        qualified = f"{package}.{name}"
        if name.startswith("_") or importlib.util.find_spec(qualified) is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return importlib.import_module(qualified)

    return load


def moved(old: str, new: str) -> Callable[[str], Any]:
    """Make `__getattr__` of a module that has another name now."""

    def load(name: str) -> Any:
        module = importlib.import_module(new)
        if name.startswith("__") or not hasattr(module, name):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        warnings.warn(f"{old}.{name} is {new}.{name} now.", DeprecationWarning, stacklevel=2)
        return getattr(module, name)

    return load
