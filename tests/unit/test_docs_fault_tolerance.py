"""docs/fault-tolerance.md and docs/run.md have every option of the callback, every fault, and every event."""

import ast
import inspect
import re
from pathlib import Path

from tfdist.launch.agent.events import EventFile
from tfdist.monitor import faults

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "fault-tolerance.md").read_text(encoding="utf-8")
RUNNING = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")


def rows(page: str, head: str) -> dict[str, str]:
    """The rows of the table with this head: what stands in backticks in its first cell -> the row."""
    (table,) = re.findall(rf"^\| {re.escape(head)} \|.*?\n\n", page, re.MULTILINE | re.DOTALL)
    lines = [line for line in table.splitlines()[2:] if line]
    return {name: line for line in lines for name in re.findall(r"`([^`]+)`", line.split("|")[1])}


def test_every_option_of_the_callback() -> None:
    source = ast.parse((ROOT / "tfdist" / "callbacks" / "backup_and_restore.py").read_text(encoding="utf-8"))
    (made,) = (one for one in ast.walk(source) if isinstance(one, ast.FunctionDef) and one.name == "__init__")
    described = rows(GUIDE, "argument")
    given = [one.arg for one in (*made.args.args[1:], *made.args.kwonlyargs)]
    assert list(described) == given
    defaults = [ast.literal_eval(one) for one in (*made.args.defaults, *made.args.kw_defaults) if one is not None]
    for name, default in zip(given[1:], defaults, strict=True):
        assert described[name].split("|")[2].strip(" `").replace('"', "'") == repr(default)


def test_every_fault_and_every_place() -> None:
    assert list(rows(GUIDE, "kind")) == list(faults.KINDS)
    for kind, row in rows(GUIDE, "kind").items():
        assert faults.KINDS[kind] in row
    assert set(rows(GUIDE, "place")) == set(faults.POINTS)


def test_every_event_and_its_keys() -> None:
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tfdist" / "launch").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            is_write = isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "write"
            event = call.args[0] if is_write and call.args else None
            if isinstance(event, ast.Constant) and isinstance(event.value, str):
                keys = {one.arg for one in call.keywords if one.arg is not None}
                found.setdefault(event.value, set()).update(keys - {"start", "clock"})
    assert len(found) >= 6
    described = rows(RUNNING, "event")
    *_, last = RUNNING.split("A job with parameter servers has `started`")
    for event, keys in found.items():
        text = described.get(event, "") + last
        missing = [key for key in keys if f"`{key}`" not in text]
        assert f"`{event}`" in text
        assert not missing, f"docs/run.md says nothing of {missing} in {event}"
    assert set(described) <= found.keys()
    of_all = rows(RUNNING, "key of every event")
    assert set(re.findall(r'"(\w+)":', inspect.getsource(EventFile.write))) <= of_all.keys()
