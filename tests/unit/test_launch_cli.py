"""The command line: the table of subcommands, lazily loaded, and how errors end."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

import tfdist
from tfdist.cli import main as cli
from tfdist.errors import ConfigError, DeadlineError


def test_the_overview_names_every_command_and_loads_none() -> None:
    code = "import sys\nfrom tfdist.cli.main import main\ntry:\n    main(['--help'])\nfinally:\n    print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    overview, modules = done.stdout.rsplit("\n", 2)[0], done.stdout.split()
    assert all(name in overview for name in cli.COMMANDS)
    assert not [f"tfdist.cli.{name}" for name in cli.COMMANDS if f"tfdist.cli.{name}" in modules]


def test_every_command_of_the_table_exists() -> None:
    for name in cli.COMMANDS:
        result = CliRunner().invoke(cli.main, [name, "--help"])
        assert result.exit_code == 0, name
        assert name in result.output.splitlines()[0]


def test_an_unknown_command() -> None:
    result = CliRunner().invoke(cli.main, ["fly"])
    assert result.exit_code == 2
    assert "No such command 'fly'" in result.output


def test_the_version() -> None:
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"tfdist {tfdist.__version__}\n"


@pytest.mark.parametrize(("error", "code"), [(ConfigError("wrong"), 2), (DeadlineError("late"), 1)])
def test_errors_end_as_their_message(error: Exception, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(config: object, *, verbose: bool) -> None:
        raise error

    monkeypatch.setattr("tfdist.cli.run.run", fails)
    result = CliRunner().invoke(cli.main, ["run", "x.py"])
    assert (result.exit_code, result.output) == (code, f"Error: {error}\n")


def test_subpackages_load_when_they_are_used() -> None:
    code = "import sys, tfdist\nprint('tfdist.cluster' in sys.modules, tfdist.cluster.Cluster().source, dir(tfdist))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("False alone")
    assert "'cluster'" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tfdist.nothing  # noqa: B018
