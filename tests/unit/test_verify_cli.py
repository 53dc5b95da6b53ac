"""The command's words: help, list, and requests that make no sense; nothing runs here."""

import pytest
from click.testing import CliRunner

from tfdist.cli.main import main
from tfdist.verify.column import COLUMNS
from tfdist.verify.feature import features


def test_help_teaches() -> None:
    done = CliRunner().invoke(main, ["verify", "--help"])
    assert done.exit_code == 0
    for word in ("--baseline", "--feature", "--strategy", "--json", "--markdown", "WRONG", "Exit code"):
        assert word in done.output


def test_list_names_every_feature_and_column() -> None:
    done = CliRunner().invoke(main, ["verify", "--list"], env={"COLUMNS": "300"})
    assert done.exit_code == 0
    for entry in features().values():
        assert f" {entry.name} " in done.output
        assert entry.summary in done.output
    for column in COLUMNS:
        assert column.name in done.output


def test_list_obeys_the_selection() -> None:
    done = CliRunner().invoke(main, ["verify", "--list", "--feature", "clip*", "--strategy", "mirrored-3"])
    assert "clipnorm" in done.output
    assert "even " not in done.output
    assert "mirrored-2" not in done.output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--feature", "evne"], "no feature is named 'evne'"),
        (["--strategy", "horovod"], "no column is named 'horovod'"),
        (["--jobs", "0"], "--jobs"),
        (["--timeout-seconds", "-3"], "--timeout-seconds"),
        (["--features"], "--feature"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["verify", *arguments])
    assert done.exit_code == 2
    assert says in done.output
