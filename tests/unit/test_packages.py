"""Packages: no cycle between them or inside of one, no more than 15 files side by side."""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache

import pytest

from tests.unit.test_architecture import (
    LAYERS,
    PACKAGE,
    ROOT,
    Source,
    dotted,
    imported_modules,
    package_of,
    sources,
    walked,
)

MOST_FILES = 15
NAME_IN_STRING = re.compile(r"tfdist(\.\w+)+(:[\w.]+|[.:])?")


@cache
def modules() -> frozenset[str]:
    return frozenset(source.module for source in sources())


@cache
def module_of(name: str) -> str:
    """The module of the package in which a dotted name stands; empty where there is none."""
    while name and name not in modules():
        name = name.rpartition(".")[0]
    return name


def for_type_checkers(tree: ast.Module) -> set[ast.AST]:
    """Return the nodes under `if TYPE_CHECKING`, which never run."""
    blocks = (node for node in walked(tree) if isinstance(node, ast.If))
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


def names_in_strings(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """The modules that code names in texts: "tfdist.a.b", "tfdist.a.b:function", and f"tfdist.a.{name}"."""
    docstrings = {node.value for node in walked(tree) if isinstance(node, ast.Expr)}
    for node in walked(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
        if is_text and NAME_IN_STRING.fullmatch(node.value):  # type: ignore[attr-defined]
            yield node, node.value.partition(":")[0].rstrip(".")  # type: ignore[attr-defined]


@cache
def named_by(source: Source) -> tuple[tuple[ast.AST, str], ...]:
    """Return the names from other packages in a file: in all imports, also for type checkers, and in strings."""
    names = (*imported_modules(source), *names_in_strings(source.tree))
    found = ((node, module_of(name)) for node, name in names if name.startswith("tfdist."))
    return tuple((node, target) for node, target in found if package_of(target) not in ("", source.package))


def package_graph(found: Iterable[Source]) -> dict[str, set[str]]:
    """Each package, and the packages that its files name. The face of tfdist itself may name all its parts."""
    graph: dict[str, set[str]] = {}
    for source in found:
        if source.package:
            graph.setdefault(source.package, set()).update(package_of(target) for _, target in named_by(source))
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules in a graph that reach each other."""
    reached = {start: reachable(start, graph) for start in graph}
    found = {
        tuple(sorted({start, *(end for end in ends if start in reached.get(end, ()))}))
        for start, ends in reached.items()
    }
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


def test_no_cycle_between_packages() -> None:
    for cycle in cycles(package_graph(sources())):
        wrong = [
            f"{source.where(node)}: names {target}"
            for source in sources()
            for node, target in named_by(source)
            if source.package in cycle and package_of(target) in cycle
        ]
        raise AssertionError(f"these packages name each other: {cycle}. Cut one way of these:\n" + "\n".join(wrong))


@pytest.mark.parametrize(
    "code",
    [
        "import tfdist.verify.matrix_cell",
        "def f():\n    from tfdist.verify import matrix_cell",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tfdist.verify.matrix_cell import run",
        "import tfdist\nx = tfdist.verify.matrix_cell",
        "TABLE = {'a': 'tfdist.verify.matrix_cell'}",
        "pool.call('tfdist.verify.matrix_cell:run')",
        "import importlib\nm = importlib.import_module(f'tfdist.verify.features.{name}')",
    ],
)
def test_every_way_to_name_a_module_closes_a_cycle(code: str) -> None:
    low = Source(path=PACKAGE / "launch" / "x.py", module="tfdist.jobs.x", tree=ast.parse(code))
    high = next(source for source in sources() if source.module == "tfdist.verify.runner")
    assert cycles(package_graph([low, high])) == [["jobs", "verify"]]


def test_a_text_that_speaks_of_a_module_names_none() -> None:
    code = "def f():\n    'tfdist.verify.matrix_cell'\n    raise ValueError('call tfdist.verify.matrix_cell first')"
    assert list(names_in_strings(ast.parse(code))) == []


def test_strategies_read_no_data() -> None:
    """A strategy knows a counted dataset by its protocol: neither the reader nor the writer comes with it."""
    graph = {
        source.module: {module_of(name) for _, name in imported_modules(source) if name.startswith("tfdist.")}
        for source in sources()
        if source.package
    }
    found = {name for name in reachable("tfdist.strategies.multi_worker_mirrored", graph) if package_of(name) == "data"}
    assert not found, f"strategies reach {sorted(found)}"


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []
    graph = {
        "tfdist.data.order.epoch_orders": {"tfdist.data.reading.reader"},
        "tfdist.data.reading.reader": {"tfdist.data.schema"},
    }
    assert subpackages_of(graph, "tfdist.data") == {
        "tfdist.data.order": {"tfdist.data.reading"},
        "tfdist.data.reading": set(),
    }


def test_a_files_name_occurs_once() -> None:
    """A stack trace, a search and a tab of an editor show the name alone."""
    names: dict[str, list[str]] = {}
    for source in sources():
        if source.path.name not in ("__init__.py", "__main__.py"):
            names.setdefault(source.path.name, []).append(source.module)
    assert not [modules for modules in names.values() if len(modules) > 1]


def test_large_packages_have_subpackages() -> None:
    counts: dict[str, int] = {}
    for source in sources():
        if source.path.name != "__init__.py" and source.path.parent != PACKAGE:
            package = source.module.rpartition(".")[0]
            counts[package] = counts.get(package, 0) + 1
    crowded = {package: count for package, count in sorted(counts.items()) if count > MOST_FILES}
    assert not crowded, f"more than {MOST_FILES} files side by side, move them into sub-packages: {crowded}"
