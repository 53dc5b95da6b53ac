"""The command line: the table of subcommands, lazily loaded, and how errors end."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import tfdist
from tests.refusals import absent
from tfdist.cli import main as cli
from tfdist.cli.bench import COMMANDS as BENCH
from tfdist.cli.data import COMMANDS as DATA
from tfdist.errors import ConfigError, DeadlineError, StorageError


@pytest.mark.parametrize(
    ("group", "package", "names"),
    [([], "tfdist.cli", cli.COMMANDS), (["bench"], "tfdist.cli.bench", BENCH), (["data"], "tfdist.cli.data", DATA)],
    ids=["tfdist", "bench", "data"],
)
def test_an_overview_names_every_command_and_loads_none(group: list[str], package: str, names: dict[str, str]) -> None:
    code = f"import sys\nfrom tfdist.cli.main import main\ntry:\n    main({[*group, '--help']})\nfinally:\n    "
    done = subprocess.run(
        [sys.executable, "-c", f"{code}print(*sys.modules)"], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    overview, modules = done.stdout.rsplit("\n", 2)[0], done.stdout.split()
    assert all(name in overview for name in names)
    loaded = {f"{package}.{name.replace('-', '_')}" for name in names} & set(modules)
    assert not loaded


@pytest.mark.parametrize(("group", "names"), [([], cli.COMMANDS), (["bench"], BENCH), (["data"], DATA)])
def test_every_command_of_a_table_exists(group: list[str], names: dict[str, str]) -> None:
    for name in names:
        result = CliRunner().invoke(cli.main, [*group, name, "--help"])
        assert result.exit_code == 0, name
        assert " ".join([*group, name]) in result.output.splitlines()[0]


def test_an_unknown_command() -> None:
    result = CliRunner().invoke(cli.main, ["fly"])
    assert result.exit_code == 2
    assert "No such command 'fly'" in result.output


def test_the_version() -> None:
    assert CliRunner().invoke(cli.main, ["--version"]).output == f"tfdist {tfdist.__version__}\n"


@pytest.mark.parametrize(("error", "code"), [(ConfigError("wrong"), 2), (DeadlineError("late"), 1)])
def test_errors_end_as_their_message(error: Exception, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run_that_raises(error, monkeypatch)
    assert (result.exit_code, result.output) == (code, f"Error: {error}\n")


def test_a_strategy_without_its_package_is_one_line_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    (tmp_path / "train.py").write_text("raise SystemExit('started')")
    ring = ["run", "--strategy", "ring", "-n", "2"]
    result = CliRunner().invoke(cli.main, [*ring, str(tmp_path / "train.py")])
    assert result.exit_code == 1
    assert len(result.output.splitlines()) == 1
    assert not absent(result.output, "Error: ", "'ring'", "tfdist build horovod")
    assert CliRunner().invoke(cli.main, [*ring, "--dry-run", str(tmp_path / "train.py")]).exit_code == 0
    result = CliRunner().invoke(cli.main, ["run", "--collectives", "horovod", str(tmp_path / "train.py")])
    assert (result.exit_code, absent(result.output, "collectives", "tfdist build horovod")) == (1, []), result.output


def test_the_collectives_of_several_workers_are_chosen(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    asked = ["run", "--collectives", "native", "--dry-run", str(tmp_path / "train.py")]
    done = CliRunner().invoke(cli.main, asked)
    assert done.exit_code == 0, done.output
    assert "export TFDIST_COLLECTIVES=native" in done.stdout.splitlines()
    refused = CliRunner().invoke(cli.main, [*asked[:-1], "--strategy", "ring", asked[-1]])
    assert refused.exit_code == 2
    assert "the strategy is ring" in refused.output
    unknown = CliRunner().invoke(cli.main, ["run", "--collectives", "nccl", asked[-1]])
    assert unknown.exit_code == 2
    assert "'native'" in unknown.output


def test_how_seldom_workers_meet_reaches_them_or_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()

    def run(strategy: str, schedule: str) -> Result:
        options = ["--strategy", strategy, "-n", "2", "--synchronization", schedule]
        return CliRunner().invoke(cli.main, ["run", "--dry-run", *options, str(script)])

    done = run("ring", "diloco:every=100,wire=int4")
    assert done.exit_code == 0, done.output
    assert "export TFDIST_SYNCHRONIZATION=diloco:every=100,wire=int4" in done.output
    for strategy, schedule, says in (
        ("pipeline", "local-sgd:every=8", "--strategy multi-worker and ring"),
        ("ring", "diloco:fragments=2", "every=8"),
        ("ring", "dilco:every=2", "diloco"),
    ):
        done = run(strategy, schedule)
        assert done.exit_code == 2, done.output
        assert says in " ".join(done.output.split())


def test_subpackages_load_when_they_are_used() -> None:
    code = "import sys, tfdist\nprint('tfdist.cluster' in sys.modules, tfdist.cluster.Cluster().source, dir(tfdist))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.stdout.startswith("False alone")
    assert "'cluster'" in done.stdout
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        tfdist.nothing  # noqa: B018


def test_several_replicas_in_a_process_are_refused_before_anything_starts_where_it_may_have_one() -> None:
    asked = ["--strategy", "sharded-data-parallel", "-n", "2", "--replicas-per-worker", "2"]
    result = CliRunner().invoke(cli.main, ["run", *asked, __file__])
    assert result.exit_code != 0
    said = " ".join((result.output + str(result.exception)).split())
    assert not absent(said, "--replicas-per-worker) is 2", "`tfdist run --strategy sharded-data-parallel -n 4 SCRIPT`")


@pytest.mark.parametrize(
    ("words", "misplaced"),
    [
        (["script.py", "-n", "2"], "-n"),
        (["-n", "2", "script.py", "--strategy", "ring"], "--strategy"),
        (["-n", "2", "script.py", "-n", "3"], None),  # it is given in its place, so the script has one of that name
        (["-n", "2", "script.py", "--epochs", "3"], None),
    ],
)
def test_an_option_behind_the_script_is_told(
    words: list[str], misplaced: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("script.py").touch()
    result = CliRunner().invoke(cli.main, ["run", "--dry-run", *words])
    assert result.exit_code == 0, result.output
    assert result.stderr.count("\n") == (misplaced is not None)
    assert misplaced is None or misplaced in result.stderr


@pytest.mark.parametrize("command", [["tune", "batch"], ["search"], ["plan"], ["verify", "--strategy", "mirrored"]])
def test_a_script_that_is_no_python_is_refused_before_it_runs(command: list[str], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("x = 1\nprint(")
    result = CliRunner().invoke(cli.main, [*command, str(script)])
    assert result.exit_code == 2
    assert absent(result.output, str(script), "line 2") == []


def test_an_event_file_may_exist_in_a_folder_that_does_not_take_new_files(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.touch()
    words = ["run", "--dry-run", "--event-file"]
    assert CliRunner().invoke(cli.main, [*words, os.devnull, str(script)]).exit_code == 0
    refused = CliRunner().invoke(cli.main, [*words, str(tmp_path / "no" / "events"), str(script)])
    assert (refused.exit_code, "--event-file" in refused.output) == (2, True)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "runs"), ("runs", "Permission denied")),
        (OSError(errno.ENOSPC, "No space left on device"), ("No space left", "TMPDIR")),
        (OSError(errno.EMFILE, "Too many open files"), ("Too many open", "ulimit -n")),
        (StorageError(errno.ENOENT, "the folder is gone."), ("Error: the folder",)),
    ],
)
def test_an_error_of_the_machine_ends_without_a_traceback(
    error: OSError, shown: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = _run_that_raises(error, monkeypatch)
    assert (result.exit_code, absent(result.output, *shown)) == (1, [])


def test_another_error_of_the_system_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", "x")
    assert _run_that_raises(error, monkeypatch).exception is error


def _run_that_raises(error: Exception, monkeypatch: pytest.MonkeyPatch) -> Result:
    def fails(config: object, *, verbose: bool) -> None:
        raise error

    monkeypatch.setattr("tfdist.cli.run_command.run", fails)
    return CliRunner().invoke(cli.main, ["run", "x.py"])
