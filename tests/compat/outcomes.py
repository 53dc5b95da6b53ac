"""Outcomes of the tests and of columns of the matrix, and the row of the table in docs/compatibility.md."""

import json
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

HEAD = ("TensorFlow", "Keras", "Python", "NumPy", "test_compat")


@dataclass(frozen=True)
class Outcome:
    """The outcome of the tests, or of a column.

    Args:
        passed: how many tests or cells are right; a cell that tfdist refuses, and may, is right.
        total: how many there are; 0 if it was not run.
        failures: a line for each that is wrong.
    """

    passed: int = 0
    total: int = 0
    failures: tuple[str, ...] = ()

    @property
    def is_wrong(self) -> bool:
        """Whether something was run that is not right."""
        return bool(self.failures)

    def __str__(self) -> str:
        """Return the outcome as a cell of the table has it."""
        if not self.total:
            return "**failed**" if self.failures else "not run"
        count = f"{self.passed} of {self.total}"
        return f"**{count}**" if self.failures else count


def of_tests(text: str, code: int) -> Outcome:
    """Return the outcome of pytest.

    Args:
        text: its report in the XML of JUnit; empty if it wrote none.
        code: its exit code.

    Example:
        >>> of_tests('<testsuite><testcase name="a"/></testsuite>', 0)
        Outcome(passed=1, total=1, failures=())
    """
    if not text:
        return Outcome(failures=(f"pytest ended with code {code} and no report",))
    cases = [case for case in ET.fromstring(text).iter("testcase") if case.find("skipped") is None]
    wrong = {case.get("name", ""): said for case in cases for said in (*case.iter("error"), *case.iter("failure"))}
    failures = tuple(f"{name}: {first_line(said.get('message', ''))}" for name, said in wrong.items())
    return _judged(len(cases), failures, f"pytest ended with code {code} after {len(cases)} tests", code)


def of_column(text: str, code: int) -> Outcome:
    """Return the outcome of `tfdist verify`.

    Args:
        text: its report in JSON; empty if it wrote none.
        code: its exit code.
    """
    if not text:
        return Outcome(failures=(f"tfdist verify ended with code {code} and no report",))
    cells = [cell for cell in json.loads(text)["cells"] if cell["status"] != "left out"]
    wrong = [cell for cell in cells if cell["status"] not in ("green", "refused")]
    failures = tuple(f"{cell['feature']}: {cell['text']}, {first_line(cell['detail'])}" for cell in wrong)
    return _judged(len(cells), failures, f"tfdist verify ended with code {code} after {len(cells)} cells", code)


def _judged(total: int, failures: tuple[str, ...], ended: str, code: int) -> Outcome:
    """Nothing run, and a failure that only the exit code tells of, are failures too."""
    if not failures and (code or not total):
        return Outcome(total, total, (ended,))
    return Outcome(total - len(failures), total, failures)


def row(versions: Mapping[str, str], outcomes: Mapping[str, Outcome]) -> str:
    """Return the head of the table, and the row of one pair.

    Args:
        versions: by name, of tensorflow, keras, python and numpy.
        outcomes: of test_compat, then of each column.
    """
    heads = [*HEAD, *list(outcomes)[1:]]
    pair = [versions[name] for name in ("tensorflow", "keras", "python", "numpy")]
    cells = [*pair, *map(str, outcomes.values())]
    return "\n".join((_line(heads), "|---" * len(heads) + "|", _line(cells)))


def first_line(message: str) -> str:
    """Return the line that stands for a message in a table."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[0][:160] if lines else "no message"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
