"""Verdicts on a suite, from its outcomes with and without tfdist and the list of failures by design."""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Outcome:
    """The outcome of one test: passed, failed, skipped or ended (its process, in the middle of it)."""

    result: str
    message: str = ""


@dataclass(frozen=True)
class Listed:
    """The known exceptions among other people's tests, as patterns of their names.

    Args:
        by_design: tests that fail with tfdist by design.
        left_out: tests that are not run, because without tfdist they do not always end either.
    """

    by_design: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


@dataclass
class Verdict:
    """The judgement of one suite; each list has the names of tests, or what is said of them."""

    alone: int = 0  # tests that pass without tfdist: no others count
    passed: int = 0
    by_design: int = 0
    failures: list[str] = field(default_factory=list)
    passes: list[str] = field(default_factory=list)

    @property
    def unexpected(self) -> int:
        return len(self.failures) + len(self.passes)


def matches(pattern: str, test: str) -> bool:
    """Return whether a test has a name of this pattern, in which ``*`` stands for anything."""
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), test, re.DOTALL) is not None


def read_list(text: str) -> Listed:
    """Return the list from a TOML file of tables ``[[by_design]]`` and ``[[left_out]]``, with ``reason`` and ``tests``.

    Raises:
        ValueError: a table has another name, no reason or no tests, or a test is listed twice.
    """
    tables = tomllib.loads(text)
    found: dict[str, list[str]] = {"by_design": [], "left_out": []}
    if unknown := set(tables) - set(found):
        raise ValueError(f"the list has tables {sorted(unknown)}; there are {' and '.join(found)}.")
    for kind, patterns in found.items():
        for table in tables.get(kind, []):
            if set(table) != {"reason", "tests"} or not table["reason"].strip() or not table["tests"]:
                raise ValueError(f"an entry must have a reason and tests, and nothing else; this one is {table!r}.")
            patterns.extend(table["tests"])
    every = [pattern for patterns in found.values() for pattern in patterns]
    if twice := {pattern for pattern in every if every.count(pattern) > 1}:
        raise ValueError(f"listed more than once: {', '.join(sorted(twice))}.")
    return Listed(**{kind: tuple(patterns) for kind, patterns in found.items()})


def read_log(lines: Iterable[str]) -> dict[str, Outcome]:
    """Return the last outcome of each test in a log of the plugin; one that only began has ended its process."""
    found: dict[str, Outcome] = {}
    for line in lines:
        said = json.loads(line)
        result = "ended" if said["outcome"] == "begun" else said["outcome"]
        message = "its process ended, or ran into the deadline" if result == "ended" else said["message"]
        found[said["test"]] = Outcome(result, message)
    return found


def judge(alone: Mapping[str, Outcome], scope: Mapping[str, Outcome], by_design: Sequence[str]) -> Verdict:
    """Compare a suite with tfdist to the same without; a test that does not pass alone tells nothing."""
    verdict = Verdict()
    for test, outcome in alone.items():
        if outcome.result != "passed":
            continue
        verdict.alone += 1
        here = scope.get(test, Outcome("missing", "it was not collected"))
        listed = any(matches(pattern, test) for pattern in by_design)
        if here.result == "passed":
            verdict.passed += 1
            if listed:
                verdict.passes.append(test)
        elif listed:
            verdict.by_design += 1
        else:
            verdict.failures.append(f"{test}: {here.result}, {first_line(here.message)}")
    return verdict


def stale(by_design: Sequence[str], counted: Iterable[str], files: Iterable[str]) -> list[str]:
    """Return the patterns for these files that match no test that counts.

    Args:
        by_design: patterns of names of tests.
        counted: the tests that pass alone.
        files: the files whose tests were run.
    """
    counted, files = list(counted), set(files)
    here = [pattern for pattern in by_design if pattern.split("::")[0] in files]
    return [pattern for pattern in here if not any(matches(pattern, test) for test in counted)]


def first_line(message: str) -> str:
    """Return the line that stands for a message in a table."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:120] if lines else "no message"


def table(verdicts: Mapping[str, Verdict]) -> str:
    """Return the table of all suites, with their sums."""
    head = ("suite", "one device", "in the scope", "by design", "unexpected")
    rows = [(name, v.alone, v.passed, v.by_design, v.unexpected) for name, v in verdicts.items()]
    sums = ("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])) if rows else ()
    cells = [tuple(map(str, row)) for row in (head, *rows, sums) if row]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in cells
    ]
    return "\n".join(line.rstrip() for line in lines)
