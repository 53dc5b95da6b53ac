"""The contents of the package: recipes, pages and the cache; and the help with mistyped names."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner, Result

from tfdist import cache
from tfdist.cli.main import main

ROOT = Path(__file__).parents[2]
RECIPES = sorted(card.parent for card in (ROOT / "strategies").glob("*/README.md"))


def run(*arguments: str, folder: Path | None = None) -> Result:
    environment = {} if folder is None else {"TFDIST_CACHE_DIR": str(folder)}
    return CliRunner().invoke(main, arguments, env=environment)


def test_every_recipe_is_listed_and_copied(tmp_path: Path) -> None:
    listed = run("recipes", "list")
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()[:-1]] == [recipe.name for recipe in RECIPES]
    for recipe in RECIPES:
        done = run("recipes", "copy", recipe.name, str(tmp_path / "mine ä" / recipe.name))
        assert done.exit_code == 0, done.output
        copied = {path.name: path.read_bytes() for path in (tmp_path / "mine ä" / recipe.name).iterdir()}
        assert copied == {path.name: path.read_bytes() for path in recipe.iterdir() if path.is_file()}


def test_a_recipe_is_copied_beside_the_others_and_over_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("recipes", "copy", "mirrored").exit_code == 0
    (tmp_path / "mirrored" / "train.py").write_text("mine")
    again = run("recipes", "copy", "mirrored")
    assert (again.exit_code, (tmp_path / "mirrored" / "train.py").read_text()) == (2, "mine")
    assert "mirrored" in again.output


@pytest.mark.parametrize(("old", "now"), [("single_device", "digits"), ("elastic", "multi_worker_mirrored")])
def test_a_recipe_is_copied_by_its_old_name_with_a_warning(
    old: str, now: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run("recipes", "copy", old)
    assert done.exit_code == 0, done.output
    assert f"'{old}'" in done.stderr
    assert f"'{now}'" in done.stderr
    assert (tmp_path / old / "train.py").read_text() == (ROOT / "strategies" / now / "train.py").read_text()


def test_pages_are_listed_and_shown() -> None:
    listed = run("docs").output
    assert "large-batch" in listed
    assert "Large batches" in listed
    assert run("docs", "large-batch").output == (ROOT / "docs" / "large-batch.md").read_text()
    assert Path(run("docs", "--path", "data").output.strip()) == ROOT / "docs" / "data.md"


def test_the_cache_is_shown_and_removed_but_for_what_is_in_use(tmp_path: Path) -> None:
    assert "keeps nothing" in run("cache", "list", folder=tmp_path / "none").output
    for name in ("ops/a.so", "wheels/key/b.whl", "work/now", "locks/a.lock", "jobs/1.sock"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1_000_000))
    listed = run("cache", "list", folder=tmp_path).output.splitlines()
    assert [line.split()[:3] for line in listed[1:]] == [[name, "1.0", "MB"] for name in ("ops", "wheels")]
    left = tmp_path / "work" / "left"
    left.mkdir()
    (left / "half.o").write_bytes(bytes(1_000_000))
    os.utime(left, (0, 0))
    assert [line.split()[0] for line in run("cache", "list", folder=tmp_path).output.splitlines()[1:]] == [
        *("ops", "wheels", "work"),
    ]
    assert ": ops, wheels, work (3.0 MB" in run("cache", "clean", "--dry-run", folder=tmp_path).output
    assert (tmp_path / "ops" / "a.so").is_file()
    assert run("cache", "clean", "ops", folder=tmp_path).output.startswith("removed: ops (1.0 MB")
    assert [one.name for one in cache.kept(tmp_path)] == ["wheels", "work"]
    assert run("cache", "clean", folder=tmp_path).output.startswith("removed: wheels, work (2.0 MB")
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert files == ["jobs/1.sock", "locks/a.lock", "work/now"], "a build may be using them"
    assert not left.exists()
    for names in ((), ("work",), ("ops", "wheels")):  # nothing is left of them
        assert run("cache", "clean", *names, folder=tmp_path).output.startswith("removed: nothing (0.0 MB")
    assert "'locks'" in run("cache", "clean", "locks", folder=tmp_path).output


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("verfy",), "verify"),
        (("data", "wriet"), "write"),
        (("data", "verfy"), "verify"),
        (("recipes", "cpy"), "copy"),
        (("recipes", "copy", "miror"), "mirrored"),
        (("docs", "large_batch"), "large-batch"),
        (("verify", "--list", "--feature", "partial_bach"), "partial_batch"),
        (("verify", "--list", "--strategy", "mirored-2"), "mirrored-2"),
        (("run", "--dry-run", "--strategy", "multiworker", __file__), "multi-worker"),
        (("tune", "batch", "--strategy", "rign", __file__), "ring"),
    ],
)
def test_a_name_that_was_mistyped_gets_a_suggestion(arguments: tuple[str, ...], meant: str) -> None:
    done = run(*arguments)
    assert done.exit_code == 2
    assert f"Did you mean '{meant}'?" in " ".join(done.output.split())


def test_a_name_that_is_near_to_nothing_gets_none() -> None:
    assert "Did you mean" not in run("xyzzy").output


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tfdist ver", {"verify"}),
        ("tfdist data ver", {"verify"}),
        ("tfdist run --strategy m", {"mirrored", "multi-worker", "model-parallel"}),
        ("tfdist tune batch --strategy r", {"ring"}),
        ("tfdist verify --strategy ring-", {"ring-2", "ring-3", "ring-2x2"}),
        ("tfdist verify --feature global_c", {"global_clipnorm"}),
        ("tfdist recipes copy dig", {"digits"}),
        ("tfdist docs large", {"large-batch", "large-batch-tune"}),
    ],
)
def test_tab_completes_commands_strategies_and_features(line: str, offered: set[str]) -> None:
    words = line.split()
    context = BashComplete(main, {}, "tfdist", "_TFDIST_COMPLETE")
    found = {item.value for item in context.get_completions(words[1:-1], words[-1])}
    assert found == offered


def test_the_completion_that_the_guide_shows_is_a_script_of_the_shell() -> None:
    guide = (ROOT / "docs" / "cli.md").read_text()
    for shell in ("bash", "zsh", "fish"):
        assert f"_TFDIST_COMPLETE={shell}_source tfdist" in guide
    environment = {**os.environ, "_TFDIST_COMPLETE": "zsh_source"}
    command = [sys.executable, "-c", "import sys; sys.argv = ['tfdist']; from tfdist.cli.main import main; main()"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert "#compdef tfdist" in done.stdout
