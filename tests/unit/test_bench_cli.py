"""The commands of benchmarks: requests that make no sense, names that have moved; nothing is measured here."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from benchmarks.__main__ import COMMANDS, main
from tests.unit.test_cli_help import MOST_LINES
from tfdist.cli.bench import MOVED
from tfdist.cli.main import main as tfdist


@pytest.mark.parametrize("name", MOVED)
def test_a_benchmark_that_has_moved_says_where_it_is(name: str) -> None:
    done = CliRunner().invoke(tfdist, ["bench", name, "--rounds", "3"])
    assert done.exit_code == 2
    assert f"python -m benchmarks {name} --rounds 3" in done.stderr
    assert name not in CliRunner().invoke(tfdist, ["bench", "--help"]).stdout.partition("Commands:")[2].split()


def test_what_has_moved_is_there() -> None:
    assert set(MOVED) <= set(COMMANDS)


@pytest.mark.parametrize("columns", MOST_LINES)
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_on_a_screen(name: str, columns: int) -> None:
    done = CliRunner().invoke(main, [name, "--help"], terminal_width=columns)
    assert done.exit_code == 0
    assert len(done.output.splitlines()) <= MOST_LINES[columns]
    assert f"python -m benchmarks {name}" in done.output.partition("Examples:")[2]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["all-reduce", "--min-bytes", "4X"], "a size is '4X'"),
        (["all-reduce", "--min-bytes", "1M", "--max-bytes", "4K"], "the smallest size is"),
        (["step", "--strategy", "ring", "--batch-size", "7"], "7 examples for 2 replicas"),
        (["step", "--json", "none/report.json"], "folder 'none'"),
        (["step", "--json", "."], "is a directory"),
        (["all-reduce", "--plot", "none/all-reduce.png"], "folder 'none'"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(tfdist, ["bench", *arguments])
    assert done.exit_code == 2
    assert says in done.output
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["recovery", "--json", "/dev/null/report.json"], "folder '/dev/null'"),
        (["parameter-server", "--workers", "1,two"], "workers is 'two'"),
        (["parameter-server", "--workers", "2,2"], "each once"),
        (["model-parallel", "--width", "15", "--heads", "5"], "heads is 5"),
        (["liars", "--part", "0.45"], "Krum survives 8"),
        (["model-parallel", "--width", "6"], "width is 6 for 4 heads"),
        (["pipeline", "--blocks", "3"], "blocks is 3"),
        (["pipeline", "--batch-size", "12"], "batch_size is 12 for 8 micro-batches"),
    ],
)
def test_a_request_to_a_benchmark_that_makes_no_sense_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert says in done.output
    assert not list(Path.cwd().iterdir())
