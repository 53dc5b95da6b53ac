"""Tests compare facts with what tfdist says: types, fields, names, numbers. Whole messages are golden texts.

A literal in an `assert` or a `match=` has fewer than five words. A name that is compared there counts as the literals
that a table or an assignment gives it. What the test itself wrote (a corpus, a script, an error that it raises) may be
long.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.refusals import words

TESTS = Path(__file__).parents[1]
FEWEST_WORDS = 5
Nodes = list[ast.AST]  # all of a file, or of a function


def text_of(node: ast.AST) -> str | None:
    """The text of a literal, with {} for what an f-string puts in; None for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = text_of(node.left), text_of(node.right)
        return None if left is None or right is None else left + right
    return None


def literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    text = text_of(node)
    if text is not None:
        yield node.lineno, text  # type: ignore[attr-defined]
    else:
        for child in ast.iter_child_nodes(node):
            yield from literals(child)


def compared(nodes: Nodes) -> Iterator[ast.expr]:
    for node in nodes:
        if isinstance(node, ast.Assert):
            yield node.test
        elif isinstance(node, ast.keyword) and node.arg == "match":
            yield node.value


def compared_names(nodes: Nodes) -> set[str]:
    """The names that stand for a part of a message: in `match=NAME`, and in `assert NAME in ...`."""
    matches = [node.value for node in nodes if isinstance(node, ast.keyword) and node.arg == "match"]
    sought = [pair.left for pair in comparisons(nodes) if isinstance(pair.ops[0], ast.In)]
    return {one.id for node in (*matches, *sought) for one in ast.walk(node) if isinstance(one, ast.Name)}


def comparisons(nodes: Nodes) -> Iterator[ast.Compare]:
    for node in nodes:
        if isinstance(node, ast.Assert):
            yield from (one for one in ast.walk(node.test) if isinstance(one, ast.Compare))


def tables(nodes: Nodes) -> Iterator[tuple[list[str], list[ast.expr]]]:
    """Columns and rows of what a test runs over: `parametrize`, and a `for` over values that are written there."""
    for node in nodes:
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("parametrize") and len(node.args) > 1:
            named, rows = node.args[:2]
            columns = ast.literal_eval(named)
            names = columns.split(",") if isinstance(columns, str) else columns
        elif isinstance(node, ast.For | ast.comprehension):
            targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
            names, rows = [ast.unparse(one) for one in targets], node.iter
        else:
            continue
        if isinstance(rows, ast.List | ast.Tuple):
            yield [name.strip() for name in names], rows.elts


def cells(row: ast.expr, columns: int) -> list[ast.expr]:
    if isinstance(row, ast.Call):  # pytest.param
        return row.args
    return row.elts if columns > 1 and isinstance(row, ast.Tuple | ast.List) else [row]


def in_tables(nodes: Nodes) -> Iterator[tuple[int, str]]:
    for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
        inner = list(ast.walk(function))
        names = compared_names(inner)
        for columns, rows in tables(inner) if names else ():
            for row in rows:
                for name, cell in zip(columns, cells(row, len(columns)), strict=False):
                    if name in names:
                        yield from literals(cell)


def operands(nodes: Nodes) -> Iterator[ast.Name]:
    """The names that an `assert` compares as they are, alone or in a list."""
    for pair in comparisons(nodes):
        for side in (pair.left, *pair.comparators):
            sides = side.elts if isinstance(side, ast.List | ast.Tuple) else [side]
            yield from (one for one in sides if isinstance(one, ast.Name))


def in_assignments(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """The literals that have a name which serves for nothing else than to be compared."""
    places = list(operands(nodes))
    names, inside = {one.id for one in places}, {id(one) for one in places}
    loaded = [one for one in nodes if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)]
    used = {one.id for one in loaded if id(one) not in inside}
    for node in nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id in names - used:
            yield from literals(node.value)


def sentences(code: str) -> list[tuple[int, str]]:
    """The literals of a file that are compared, have too many words, and are no part of what the test wrote."""
    nodes = list(ast.walk(ast.parse(code)))
    wheres = list(compared(nodes))
    inside = {id(node) for where in wheres for node in ast.walk(where)}
    in_asserts = {(line, text) for where in wheres for line, text in literals(where) if words(text) >= FEWEST_WORDS}
    written = [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside
    ]
    found = {(line, text) for line, text in in_asserts if not any(text in one for one in written)}
    named = {*in_tables(nodes), *in_assignments(nodes)}
    return sorted(found | {(line, text) for line, text in named if words(text) >= FEWEST_WORDS})


def test_no_sentence_is_compared() -> None:
    wrong = [
        f"tests/{path.relative_to(TESTS)}:{line}: {text!r}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, text in sentences(path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "compare fields and facts, or add to tests/goldens/messages.py:\n" + "\n".join(wrong)


SEEN = [
    "assert 'the job has no such host' in output",
    "assert output == f'worker {one} has failed before it came'",
    "assert said == ['the job ' + 'has no such host']",
    "with pytest.raises(ConfigError, match='the job has no such .* host'):\n    f()",
    "said = 'the job has no such host'\nassert said in output",
    "one, other = f()\nsaid = 'the job has no such host'\nassert (one, other) == (said, said)",
    "def test():\n    for x, said in ((1, 'the job has no such host'), (2, 'b')):\n        assert said in output",
    "@pytest.mark.parametrize('said', ['the job has no such host'])\n"
    "def test(said):\n    with pytest.raises(ConfigError, match=said):\n        f()",
    "@pytest.mark.parametrize(('x', 'said'), [pytest.param(1, 'the job has no such host')])\n"
    "def test(x, said):\n    with pytest.raises(ConfigError, match=f'{x}.*{said}'):\n        f()",
]
LET_THROUGH = [
    "assert 'no such host' in output",
    "assert 'tfdist run --strategy multi-worker -n 2 --mesh pipeline=2 train.py' in output",
    "assert error.path == '/a/long/path/of/seven/parts/here'",
    "assert f(), 'the reason why the test has failed'",
    "write('one two three four five six')\nassert read() == 'one two three four five six'",
    "text = 'one two three four five six'\nwrite(text)\nassert read() == text",
    "def test():\n    for text, count in (('one two three four five', 5),):\n        assert words(text) == count",
]


@pytest.mark.parametrize("code", SEEN)
def test_sentences_are_seen(code: str) -> None:
    assert len(sentences(code)) == 1


@pytest.mark.parametrize("code", LET_THROUGH)
def test_facts_and_inputs_are_let_through(code: str) -> None:
    assert sentences(code) == []
