"""The file of a federated application: what is refused before it runs, and what it may import."""

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, ConfigTypeError, MissingFileError
from tfdist.federated.app_file import load_app


@pytest.mark.parametrize(
    ("text", "error", "name"),
    [
        ("raise AssertionError('runs, although it cannot set app')", ConfigError, "app"),
        ("globals()['x'] = 1", ConfigError, "app"),
        ("app = 1", ConfigTypeError, "app"),
        (None, MissingFileError, None),
    ],
)
def test_a_file_without_an_application_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, error: Any, name: Any
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "app.py"
    if text is not None:
        file.write_text(text)
    with refused(error, name=name, path=file):
        load_app(file)


def test_an_application_of_another_name_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("from tfdist import federated as f\nmine = f.App(print, print, f.FedAvg())\n")
    with refused(ConfigError, name="app", mentions=("mine",)):
        load_app(tmp_path / "app.py")


@pytest.mark.parametrize(
    "binding",
    [
        "if True:\n    app = make()",
        "app: object = make()",
        "(first, app) = (1, make())",
        "from beside import *",
        "from beside import name as app",
        "globals()['app'] = make()",
    ],
)
def test_a_file_that_may_set_the_application_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, binding: str
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "app.py").write_text(f"raise SystemExit(7)\n{binding}\n")
    with pytest.raises(SystemExit):
        load_app(tmp_path / "app.py")


def test_a_file_imports_modules_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "beside_the_app.py").write_text("NAMES = ['berlin']")
    text = "from tfdist.federated import App, FedAvg\nimport beside_the_app\n"
    (tmp_path / "app.py").write_text(text + "app = App(print, print, FedAvg(), clients=beside_the_app.NAMES)")
    assert load_app(tmp_path / "app.py").names() == ("berlin",)
    del sys.modules["beside_the_app"]
