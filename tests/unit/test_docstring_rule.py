"""Docstrings: whole ones for what users call, and a few lines at most for the rest.

A public name, a protocol and their members are promises, so their docstrings have arguments, errors and examples.
Elsewhere a section that repeats the type hints of a function goes out of date and hides the code. A docstring opens
with what the thing is or does ("Filter known TensorFlow log noise"), not with a question word.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.goldens.public_names import public_paths
from tests.unit.test_architecture import ROOT, Source, dotted, sources

LONGEST = 8
FOLDERS = (
    "tfdist",
    "benchmarks",
    "docker",
    "docs",
    "ecosystem",
    "findings",
    "notebooks",
    "packaging",
    "strategies",
    "tests",
)
_QUESTION = r"(?:what|how|who|where|when|why|which|whose)\b"
_OPENING = re.compile(rf"\W*{_QUESTION}", re.IGNORECASE)
# A docstring begins a line. A file in which no line begins so is not parsed: to parse all files takes seconds.
_QUOTED_OPENING = re.compile(rf"^\s*[ru]?[\"']\W*{_QUESTION}", re.IGNORECASE | re.MULTILINE)
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


@dataclass(frozen=True)
class Opening:
    """A docstring that opens with a question word.

    Attributes:
        file: its path in the repository.
        name: the class or function, with those around it; empty for the module.
        line: the first line of the docstring.
    """

    file: str
    name: str
    line: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name or 'the module'}: {self.line}"


def openings(file: str, text: str) -> Iterator[Opening]:
    """Yield the docstrings in a file's text that open with a question word."""

    def under(node: ast.AST, name: str) -> Iterator[Opening]:
        if isinstance(node, ast.Module | _Definition):
            told = ast.get_docstring(node) or ""
            if _OPENING.match(told):
                yield Opening(file, name, told.splitlines()[0])
        for inner in ast.iter_child_nodes(node):
            yield from under(inner, f"{name}.{inner.name}".lstrip(".") if isinstance(inner, _Definition) else name)

    if _QUOTED_OPENING.search(text):
        yield from under(ast.parse(text), "")


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


def test_docstrings_open_with_what_things_are() -> None:
    files = [ROOT / "setup.py", *(path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))]
    found = [
        one for path in files for one in openings(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not found, "open with a verb or a noun, not with a question word:\n" + "\n".join(map(str, found))


@pytest.mark.parametrize("quotes", ['"""', "'''", '"'])
def test_openings_are_found_in_modules_classes_and_functions(quotes: str) -> None:
    def quoted(told: str) -> str:
        return f"{quotes}{told}{quotes}"

    lines = [
        quoted("What the module has."),
        "class A:",
        f"    r{quoted(' how it went')}",
        "    if B:",
        "        async def b(self):",
        f"            {quoted('``Which`` of them.')}",
        "            def c():",
        f"                {quoted('Whichever it is, what was asked.')}",
        "                return 'What it is.'",
    ]
    assert list(openings("f.py", "\n".join(lines))) == [
        Opening("f.py", "", "What the module has."),
        Opening("f.py", "A", "how it went"),
        Opening("f.py", "A.b", "``Which`` of them."),
    ]
