"""The table of environment variables, and that nothing else reads or spells them."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist import variables
from tfdist.errors import ConfigError
from tfdist.variables import Variable

PACKAGE = Path(variables.__file__).parent
# started by path, with nothing but the standard library
WITHOUT_TFDIST = ("script_worker.py",)
CONSTANTS = frozenset(name for name, value in vars(variables).items() if isinstance(value, Variable))


def violations(tree: ast.AST) -> Iterator[int]:
    """The lines that spell a variable, or look one up without its table."""
    for node in ast.walk(tree):
        spelled = isinstance(node, ast.Constant) and re.fullmatch("TFDIST_[A-Z0-9_]*", str(node.value))
        if spelled or any(map(_is_name, _looked_up(node))):
            yield node.lineno  # type: ignore[attr-defined]


def _looked_up(node: ast.AST) -> list[ast.AST]:
    """Return the keys that a node looks up in a mapping."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        return [node.slice]
    if isinstance(node, ast.Compare) and "environ" in ast.unparse(node.comparators[0]):
        return [node.left]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith((".get", "getenv")):
        return [*node.args]
    return []


def _is_name(node: ast.AST) -> bool:
    if not (isinstance(node, ast.Attribute) and node.attr == "name"):
        return False
    return ast.unparse(node.value).removeprefix("variables.") in CONSTANTS


def test_variables_are_spelled_and_read_in_their_table_alone() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.name not in ("variables.py", *WITHOUT_TFDIST)
        for line in violations(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    [
        'environ["TFDIST_MESH"]',
        "os.environ[MESH.name]",
        "environ.get(variables.MESH.name)",
        "MESH.name in os.environ",
        "os.getenv(MESH.name)",
    ],
)
def test_other_reads_are_seen(code: str) -> None:
    assert list(violations(ast.parse(code))) == [1]


@pytest.mark.parametrize(
    "code", ["MESH.read(environ)", 'made = {MESH.name: "data=2"}', "environment[MESH.name] = mesh"]
)
def test_the_table_and_writing_are_no_other_reads(code: str) -> None:
    assert list(violations(ast.parse(code))) == []


def test_each_variable_is_there_once() -> None:
    names = [one.name for one in variables.ALL]
    assert len(set(names)) == len(names) == len(CONSTANTS)
    assert all(name == f"{variables.PREFIX}{constant}" for constant in CONSTANTS for name in [_name_of(constant)])


def _name_of(constant: str) -> str:
    return str(getattr(variables, constant).name)


@pytest.mark.parametrize("blank", [{}, {"TFDIST_SHARDING_STAGE": ""}, {"TFDIST_SHARDING_STAGE": "  "}])
def test_a_blank_variable_has_its_default(blank: dict[str, str]) -> None:
    assert variables.SHARDING_STAGE.read(blank) is None


def test_texts_become_values() -> None:
    assert variables.SHARDING_STAGE.read({"TFDIST_SHARDING_STAGE": " 2 "}) == 2
    assert [variables.MAX_STALENESS.read({"TFDIST_MAX_STALENESS": one}) for one in ("3", "None", "")] == [3, None, None]
    assert [variables.NATIVE.read({"TFDIST_NATIVE": one}) for one in ("0", "1", "")] == [False, True, True]
    assert [variables.ALL_LOGS.read({"TFDIST_ALL_LOGS": one}) for one in ("0", "1", "")] == [False, True, False]
    assert variables.CACHE_DIR.read({"TFDIST_CACHE_DIR": "/a"}) == Path("/a")
    assert variables.MONITOR_DIR.read({"TFDIST_MONITOR_DIR": "/a "}) == "/a "  # a folder may end so


@pytest.mark.parametrize(
    ("variable", "wrong"),
    [
        (variables.SHARDING_STAGE, "4"),
        (variables.SHARDING_STAGE, "two"),
        (variables.REPLICAS_PER_WORKER, "0"),
        (variables.MAX_STALENESS, "-1"),
        (variables.NATIVE, "maybe"),
        (variables.TRIALS, "never"),
        (variables.JOIN_SECONDS, "soon"),
    ],
)
def test_malformed_texts_are_refused_by_name(variable: Variable[object], wrong: str) -> None:
    with refused(ConfigError, name=variable.name, received=wrong):
        variable.read({variable.name: wrong})
