"""The design inside of packages: no import cycles, no more than 15 files side by side."""

import ast
from functools import cache

import pytest

from tests.unit.test_architecture import LAYERS, PACKAGE, ROOT, dotted, imported_modules, package_of, sources

MOST_FILES = 15


@cache
def modules() -> frozenset[str]:
    return frozenset(source.module for source in sources())


def module_of(name: str) -> str:
    """The module of the package in which a dotted name stands; empty where there is none."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def for_type_checkers(tree: ast.Module) -> set[ast.AST]:
    """What stands under `if TYPE_CHECKING`, which nobody runs."""
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.If))
    return {
        inner
        for block in blocks
        if dotted(block.test).endswith("TYPE_CHECKING") or getattr(block.test, "id", "") == "TYPE_CHECKING"
        for inner in ast.walk(block)
    }


def imports_inside(package: str) -> dict[str, set[str]]:
    """Each module of a package, and which of the same package it imports.

    Imports inside functions count: they make a start faster, and are no way around a cycle, since neither of two
    modules that name each other can be understood or tested alone. What type checkers alone read does not count.
    """
    found: dict[str, set[str]] = {}
    for source in (source for source in sources() if source.package == package):
        unread = for_type_checkers(source.tree)
        targets = (module_of(target) for node, target in imported_modules(source) if node not in unread)
        inside = {target for target in targets if target.startswith(f"tfdist.{package}")}
        found[source.module] = {target for target in inside if package_of(target) == package} - {source.module}
    return found


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules in a graph that reach each other."""
    reached = {start: reachable(start, graph) for start in graph}
    found = {tuple(sorted({start, *(end for end in ends if start in reached[end])})) for start, ends in reached.items()}
    return [list(cycle) for cycle in sorted(found) if len(cycle) > 1]


def reachable(start: str, graph: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        fresh = graph.get(ahead.pop(), set()) - seen
        seen |= fresh
        ahead += fresh
    return seen


def subpackages_of(graph: dict[str, set[str]], package: str) -> dict[str, set[str]]:
    """The same graph between the sub-packages of a package; files that lie in the package itself are left out."""
    depth = package.count(".") + 1

    def folder(module: str) -> str:
        path = ROOT.joinpath(*module.split(".")[: depth + 1])
        return ".".join(module.split(".")[: depth + 1]) if path.is_dir() else ""

    found: dict[str, set[str]] = {}
    for module, targets in graph.items():
        if folder(module):
            found.setdefault(folder(module), set()).update(
                {folder(target) for target in targets} - {folder(module), ""}
            )
    return found


@pytest.mark.parametrize(
    "package", sorted(name for name, number in LAYERS.items() if (PACKAGE / name).is_dir() and name)
)
def test_no_import_cycle_inside_a_package(package: str) -> None:
    graph = imports_inside(package)
    found = cycles(graph) + cycles(subpackages_of(graph, f"tfdist.{package}"))
    assert not found, f"these name each other: {found}. Move what both need below them."


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    graph = {
        "tfdist.data.order.orders": {"tfdist.data.reading.reader"},
        "tfdist.data.reading.reader": {"tfdist.data.pool"},
    }
    assert subpackages_of(graph, "tfdist.data") == {
        "tfdist.data.order": {"tfdist.data.reading"},
        "tfdist.data.reading": set(),
    }


def test_large_packages_have_subpackages() -> None:
    counts: dict[str, int] = {}
    for source in sources():
        if source.path.name != "__init__.py" and source.path.parent != PACKAGE:
            package = source.module.rpartition(".")[0]
            counts[package] = counts.get(package, 0) + 1
    crowded = {package: count for package, count in sorted(counts.items()) if count > MOST_FILES}
    assert not crowded, f"more than {MOST_FILES} files side by side, move them into sub-packages: {crowded}"
