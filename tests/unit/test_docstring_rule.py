"""Docstrings: whole ones for what users call, and a few lines at most for the rest.

A public name, a protocol and their members are promises, so their docstrings have arguments, errors and examples.
Elsewhere a section that repeats the type hints of a function goes out of date and hides the code.
"""

import ast
import re
from collections.abc import Iterator

from tests.goldens.public_names import public_paths
from tests.unit.test_architecture import Source, dotted, sources

LONGEST = 8
_REPEATS = re.compile(r"^\s*(Args|Returns|Raises|Yields):\s*$", re.MULTILINE)
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def definitions(body: list[ast.stmt], prefix: str, promised: bool = False) -> Iterator[tuple[_Definition, bool]]:
    """Yield the classes and functions of a file, and whether a page of docs/api or a protocol promises each."""
    for node in body:
        if isinstance(node, _Definition):
            path = f"{prefix}.{node.name}"
            is_protocol = isinstance(node, ast.ClassDef) and any("Protocol" in ast.dump(base) for base in node.bases)
            is_private = node.name.startswith("_") and not node.name.startswith("__")
            is_promised = path in public_paths() or ((is_protocol or promised) and not is_private)
            yield node, is_promised
            yield from definitions(node.body, path, is_promised and isinstance(node, ast.ClassDef))


def documented_by_decorator(node: _Definition) -> bool:
    """An override has its parent's documentation; `@feature("...")` and a command carry their own."""
    decorators = [one.func if isinstance(one, ast.Call) else one for one in node.decorator_list]
    return any(dotted(one).split(".")[-1] in {"override", "overload", "setter", "feature"} for one in decorators)


def too_much(source: Source) -> Iterator[str]:
    for node, is_promised in definitions(source.tree.body, source.module):
        told = ast.get_docstring(node) or ""
        is_help = source.module.startswith("tfdist.cli.") and bool(node.decorator_list)
        if is_promised or is_help or isinstance(node, ast.ClassDef):
            continue
        if _REPEATS.search(told):
            yield f"{source.where(node)}: a section that repeats the signature"
        elif len(told.splitlines()) > LONGEST and ">>>" not in told:
            yield f"{source.where(node)}: {len(told.splitlines())} lines"


def missing(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield f"{source.where(source.tree)}: the module"
    for node, is_promised in definitions(source.tree.body, source.module):
        if (
            is_promised
            and not node.name.startswith("_")
            and not ast.get_docstring(node)
            and not documented_by_decorator(node)
        ):
            yield f"{source.where(node)}: {node.name}"


def test_only_promises_have_long_docstrings() -> None:
    found = [line for source in sources() for line in too_much(source)]
    assert not found, "\n".join(found)


def test_promises_are_documented() -> None:
    found = [line for source in sources() for line in missing(source)]
    assert not found, "no docstring:\n" + "\n".join(found)
