"""Run test suites of Keras and TensorFlow without tfdist and with it, compare, and print a table."""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.peers import checkouts
from tests.peers.outcomes import Listed, Outcome, Verdict, first_line, judge, read_list, stale, table
from tests.peers.run import BrokenError, run
from tests.peers.suites import SUITES, Project, Suite

LIST = Path(__file__).with_name("by_design.toml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where exactly the listed tests fail, 1 where others do or listed ones pass, 2 where nothing was run."""
    given = _parsed(arguments)
    listed = read_list(LIST.read_text(encoding="utf-8"))
    suites = [suite for suite in SUITES if suite.name in (given.suite or [s.name for s in SUITES])]
    try:
        roots = {suite: checkouts.root(suite, getattr(given, suite.project.value)) for suite in suites}
        results = Path(given.results or tempfile.mkdtemp(prefix="tfdist-peers-")).resolve()
        verdicts = {suite.name: _judged(suite, root, listed, results) for suite, root in roots.items()}
    except (checkouts.MissingError, BrokenError) as error:
        print(error, file=sys.stderr)
        return 2
    print(f"\n{table(verdicts)}\n\nWhat the tests printed: {results}")
    return 1 if any(verdict.unexpected for verdict in verdicts.values()) else 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.peers", description=__doc__)
    for project in Project:
        parser.add_argument(f"--{project.value}", type=_folder, help=f"a checkout of {project.value}")
    parser.add_argument("--suite", action="append", choices=[suite.name for suite in SUITES], help="all by default")
    parser.add_argument("--results", help="a folder for what the tests print")
    return parser.parse_args(arguments)


def _folder(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is no folder")
    return path


def _judged(suite: Suite, root: Path, listed: Listed, results: Path) -> Verdict:
    """Run one suite both ways, and print what was not expected of it."""
    folder = results / suite.name
    folder.mkdir(parents=True, exist_ok=True)
    files = checkouts.files(suite, root)
    print(f"{suite.name}: {len(files)} files of {root}", flush=True)
    outcomes: list[dict[str, Outcome]] = [
        run(files, root, suite.way, with_tfdist=with_tfdist, left_out=listed.left_out, folder=folder)
        for with_tfdist in (False, True)
    ]
    alone, scope = outcomes
    verdict = judge(alone, scope, listed.by_design)
    counted = [test for test, outcome in alone.items() if outcome.result == "passed"]
    unused = stale(listed.by_design, counted, [path.relative_to(root).as_posix() for path in files])
    verdict.passes.extend(f"{test} (matches no test that passes on one device)" for test in unused)
    for test, outcome in alone.items():
        if outcome.result == "uncollected":
            print(f"  left out: {test} ({first_line(outcome.message)})")
    for line in verdict.failures:
        print(f"  fails: {line}")
    for line in verdict.passes:
        print(f"  listed as failing by design, and does not: {line}")
    return verdict


if __name__ == "__main__":
    sys.exit(main())
