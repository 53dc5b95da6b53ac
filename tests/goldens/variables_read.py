"""Every variable `TFDIST_*` that tfdist reads from an environment, with the modules that read it, from the sources.

A variable is read where its name is an argument of a call, such as `environ.get(NAME)`, a key that is looked up, what
`in` looks for, or one of the names that a loop goes through. Names may be constants, of other modules too.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
_NAME = re.compile(r"TFDIST_[A-Z0-9_]*[A-Z0-9]")
_NO_READER = "not read by its name"


def variables_read() -> str:
    """Return the golden text: each variable, and below it the modules that read it."""
    sources = {_module(path): path.read_text(encoding="utf-8") for path in sorted((ROOT / "tfdist").rglob("*.py"))}
    trees = {module: ast.parse(text) for module, text in sources.items() if "TFDIST_" in text}
    constants = {module: dict(_constants(tree)) for module, tree in trees.items()}
    called = re.compile("|".join(rf"\b{name}\b" for name in {name for one in constants.values() for name in one}))
    trees |= {name: ast.parse(text) for name, text in sources.items() if name not in trees and called.search(text)}
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        known = _known(module, tree, constants)
        for variable in _named(tree):
            found.setdefault(variable, set())
        for node in _read(tree):
            if variable := _resolved(node, known):
                found.setdefault(variable, set()).add(module)
    lines = []
    for variable, modules in sorted(found.items()):
        lines += [variable, *(f"  {module}" for module in sorted(modules) or [_NO_READER])]
    return "\n".join(lines) + "\n"


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The module's own names for variables: `A = "TFDIST_A"` and `A, B = "TFDIST_A", "TFDIST_B"`, in functions too."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            pairs = [(target, node.value)]
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = list(zip(target.elts, node.value.elts, strict=True))
            for name, value in pairs:
                if isinstance(name, ast.Name) and (variable := _literal(value)):
                    yield name.id, variable


def _known(module: str, tree: ast.Module, constants: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """The names that stand for variables in a module: its own, and those it imports, `table.MESH` among them."""
    known = dict(constants.get(module, {}))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                called = alias.asname or alias.name
                if variable := constants.get(node.module, {}).get(alias.name):
                    known[called] = variable
                for name, variable in constants.get(f"{node.module}.{alias.name}", {}).items():
                    known[f"{called}.{name}"] = variable
    return known


def _literal(node: ast.AST) -> str:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return str(node.value) if is_text and _NAME.fullmatch(node.value) else ""  # type: ignore[attr-defined]


def _named(tree: ast.Module) -> Iterator[str]:
    return filter(None, map(_literal, ast.walk(tree)))


def _resolved(node: ast.AST, known: Mapping[str, str]) -> str:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return known.get(f"{node.value.id}.{node.attr}", "")
    return known.get(node.id, "") if isinstance(node, ast.Name) else _literal(node)


def _read(tree: ast.Module) -> Iterator[ast.AST]:
    """The parts of a module that may name a variable in order to read it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not ast.unparse(node.func).endswith("Error"):  # an error names it alone
            yield from node.args
            yield from (keyword.value for keyword in node.keywords)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield node.slice
        elif isinstance(node, ast.Compare) and any(isinstance(one, ast.In | ast.NotIn) for one in node.ops):
            yield node.left
        elif isinstance(node, ast.For | ast.comprehension):
            yield from ast.walk(node.iter)
