"""The texts of installed packages: real data for recipes, without a download.

The texts depend on the installed versions.

Example:
    >>> [path.name for path in python_files("logging")]
    ['__init__.py', 'config.py', 'handlers.py']
"""

import ast
import importlib.util
from collections.abc import Iterator
from pathlib import Path

from tfdist.errors import ConfigError


def python_files(package: str) -> list[Path]:
    """Return the source files of a package, in the order of their paths."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            f"package is {package!r}, which is not an installed package; its source files are to be read. Name one "
            "that `python -c 'import NAME'` finds.",
            name="package",
            received=package,
        )
    return sorted(path for folder in spec.submodule_search_locations for path in Path(folder).rglob("*.py"))


def docstrings(package: str) -> Iterator[str]:
    """Yield the docstrings of a package's modules, classes and functions."""
    for path in python_files(package):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                yield text
