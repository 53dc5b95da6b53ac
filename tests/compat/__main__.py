"""The command: installs a pair of TensorFlow and Keras, runs what was chosen beside it, and prints a row of a table."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.compat import environment
from tests.compat.choice import COLUMNS, TEST, Column
from tests.compat.outcomes import Outcome, of_column, of_tests, row
from tests.compat.processes import run
from tfdist.compat.version_pairs import MAIN, TESTED, Pair, Standing, judge

TEST_SECONDS = 1800.0
COLUMN_SECONDS = 3600.0
CELL_SECONDS = 600.0  # cells take seconds, but beside other work longer than `tfdist verify` allows
PARTS = ("test_compat", *(column.name for column in COLUMNS))


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 where all that was run is right, 1 where something is not, 2 where nothing was run."""
    given = _parsed(arguments)
    pair = Pair(given.tensorflow or "", given.keras)
    if refusal := _refusal(pair):
        print(refusal, file=sys.stderr)
        return 2
    results = Path(given.results).resolve() / environment.name(pair)
    results.mkdir(parents=True, exist_ok=True)
    parts = given.part or PARTS
    ring = given.ring or any(column.needs_horovod and column.name in (given.part or ()) for column in COLUMNS)
    try:
        place = environment.ensure(pair, results / "install.txt")
        if ring:
            environment.build_horovod(place, results / "horovod.txt")
    except environment.BrokenError as error:
        print(error, file=sys.stderr)
        return 2
    outcomes = _outcomes(place, results, parts, ring=ring)
    print(f"\n{row(environment.versions(place), outcomes)}\n\nWhat was printed: {results}")
    return 1 if any(outcome.is_wrong for outcome in outcomes.values()) else 0


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__)
    parser.add_argument("--tensorflow", metavar="VERSION", help=f"such as {MAIN.tensorflow}")
    parser.add_argument("--keras", metavar="VERSION", default=MAIN.keras, help="%(default)s by default")
    parser.add_argument("--part", action="append", choices=PARTS, help="run this one; all by default")
    parser.add_argument("--ring", action="store_true", help="build Horovod for this TensorFlow, and run the ring too")
    parser.add_argument("--results", default="runs/compat", help="a folder for what is printed, %(default)s by default")
    return parser.parse_args(arguments)


def _refusal(pair: Pair) -> str:
    """Return why a pair is not run, with what to do; empty if it is run."""
    if not pair.tensorflow:
        tested = ", ".join(dict.fromkeys(known.tensorflow for known in TESTED))
        return (
            f"Name a version of TensorFlow: make compat TENSORFLOW={MAIN.tensorflow} [KERAS={MAIN.keras}]. "
            f"Tested were {tested}."
        )
    judged = judge(pair.tensorflow, pair.keras)
    if judged.standing is Standing.OUT_OF_RANGE:
        return f"{judged.text}. To try it, widen the range in setup.py and tfdist/compat/version_pairs.py first."
    return ""


def _outcomes(place: Path, results: Path, parts: Sequence[str], *, ring: bool) -> dict[str, Outcome]:
    """Run the parts one after the other, and print each as it ends."""
    outcomes = dict.fromkeys(PARTS, Outcome())
    for column in (None, *COLUMNS):
        name = column.name if column else "test_compat"
        if name not in parts or (column and column.needs_horovod and not ring):
            continue
        print(f"{name}: running", flush=True)
        outcomes[name] = _column(place, results, column) if column else _tests(place, results)
        print(f"{name}: {outcomes[name]}", flush=True)
        for line in outcomes[name].failures:
            print(f"  {line}", flush=True)
    return outcomes


def _tests(place: Path, results: Path) -> Outcome:
    report = results / "test_compat.xml"
    report.unlink(missing_ok=True)
    pytest = (str(place / "bin" / "python"), "-m", "pytest", TEST, "-q", "-p", "no:cacheprovider")
    code = run(
        (*pytest, f"--junitxml={report}"),
        results / "test_compat.txt",
        seconds=TEST_SECONDS,
        environment=environment.variables(place),
    )
    return of_tests(report.read_text(encoding="utf-8") if report.exists() else "", code)


def _column(place: Path, results: Path, column: Column) -> Outcome:
    report = results / f"{column.name}.json"
    report.unlink(missing_ok=True)
    verify = (str(place / "bin" / "tfdist"), "verify")
    chosen = [option for feature in column.features for option in ("--feature", feature)]
    code = run(
        (*verify, "--strategy", column.name, *chosen, f"--timeout-seconds={CELL_SECONDS}", "--json", str(report)),
        results / f"{column.name}.txt",
        seconds=COLUMN_SECONDS,
        environment=environment.variables(place),
    )
    return of_column(report.read_text(encoding="utf-8") if report.exists() else "", code)


if __name__ == "__main__":
    sys.exit(main())
