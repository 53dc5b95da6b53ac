"""The private names of the frameworks that a file of `tfdist/compat` uses, read from its source.

Used by tests/integration/test_compat.py, which has an assertion for each.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

COMPAT = Path(__file__).parents[1] / "tfdist" / "compat"
PRIVATE_MODULES = ("tensorflow.python", "tensorflow.core", "keras.src", "horovod.")
# Classes that TensorFlow's are mixed with: what they define may override what those have.
MIX_INS = frozenset({"ReduceInReplicas"})
# `sys._getframe` is Python's; the methods of a named tuple have names like these, so that no field can have them.
OF_PYTHON = frozenset({"_getframe", "_replace", "_fields", "_asdict", "_make"})


def files() -> list[Path]:
    """Every file of `compat`."""
    return sorted(path for path in COMPAT.rglob("*.py") if path.name != "__init__.py")


def file(path: Path) -> str:
    """Return the path of a file within `compat`, such as `keras/model.py`."""
    return path.relative_to(COMPAT).as_posix()


def imports(path: Path) -> list[tuple[str, str]]:
    """Module and name of everything that a file imports from private modules."""
    return [
        (node.module, alias.name)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_MODULES)
        for alias in node.names
    ]


def attributes(path: Path) -> list[tuple[str, str, str]]:
    """Return module, name and attribute of all that a file reads from private modules and TensorFlow's context."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PRIVATE_MODULES)
        for alias in node.names
    }
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            owner = ast.unparse(node.value)
            call = owner.removesuffix("()") if owner.endswith(".context()") else owner
            if call.partition(".")[0] in known and call.count(".") == (call != owner):
                module, name = known[call.partition(".")[0]]
                found.append((module, name + owner[len(call.partition(".")[0]) :], node.attr))
    return sorted(set(found))


def names(path: Path) -> set[str]:
    """Private attributes, methods and texts in a file, without those that can only be the file's own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = {name for name in _used(tree) if is_private(name)} - OF_PYTHON
    return used - _own(tree) | {name for name in _overriding(tree) if is_private(name)}


def is_private(name: str) -> bool:
    """Whether a name is private, and not one that begins with ours."""
    return name.startswith("_") and not name.startswith(("__", "_tfdist")) and name.isidentifier() and name != "_"


def _used(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _classes(tree: ast.AST, *, foreign: bool) -> Iterator[ast.ClassDef]:
    """Classes that derive from a class of another file, or are mixed with one; or all others."""
    own = {"Protocol", "NamedTuple", "Exception"}
    for node in ast.walk(tree):  # in the order of the file: a base comes before what derives from it
        if isinstance(node, ast.ClassDef):
            is_foreign = bool({ast.unparse(base) for base in node.bases} - own) or node.name in MIX_INS
            if not is_foreign:
                own.add(node.name)
            if is_foreign == foreign:
                yield node


def _defined(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.FunctionDef):
            yield inner.name
        elif (
            isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and ast.unparse(inner.value) == "self"
        ):
            yield inner.attr


def _overriding(tree: ast.AST) -> set[str]:
    return {name for node in _classes(tree, foreign=True) for name in _defined(node)}


def _own(tree: ast.Module) -> set[str]:
    """Return the names that the module or one of its own classes defines."""
    found = {name for node in _classes(tree, foreign=False) for name in _defined(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
    return found
