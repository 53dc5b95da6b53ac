"""The target of a build, and the tools that it needs on the machine."""

import sys
from pathlib import Path

import pytest

from tests.refusals import refused
from tfdist.errors import MissingDependencyError
from tfdist.native.build_target import observe, version_of_tensorflow
from tfdist_horovod import build_tools


def program(folder: Path, name: str) -> str:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def test_this_environment() -> None:
    seen = observe()
    assert seen.python == sys.executable
    assert seen.version == version_of_tensorflow()
    assert (seen.root / "tensorflow" / "include").is_dir()
    assert seen.python_tag == f"cp3{sys.version_info.minor}"
    assert "-" not in seen.platform + seen.python_tag
    assert "tensorflow" not in sys.modules


def test_tools_are_found_on_the_path_that_is_asked(tmp_path: Path) -> None:
    made = {name: program(tmp_path / "bin", name) for name in ("g++", "gcc", "make")}
    tools = build_tools.find_tools({"PATH": str(tmp_path / "bin")})
    assert (tools["compiler"], tools["C compiler"], tools["make"]) == (made["g++"], made["gcc"], made["make"])
    assert build_tools.missing_tools(tools) == ()


def test_a_chosen_compiler_counts_alone(tmp_path: Path) -> None:
    for name in ("g++", "gcc", "make"):
        program(tmp_path / "bin", name)
    assert build_tools.find_tools({"PATH": str(tmp_path / "bin"), "CXX": "g++-99 -v"})["compiler"] is None
    chosen = program(tmp_path / "bin", "g++-99")
    assert build_tools.find_tools({"PATH": str(tmp_path / "bin"), "CXX": "g++-99 -v"})["compiler"] == chosen


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        build_tools.require_tools(build_tools.find_tools({"PATH": str(tmp_path)}))
    said = str(caught.value)
    for cure in ("apt-get install g++", "apt-get install gcc", "apt-get install make", "conda install"):
        assert cure in said


def test_a_python_without_pip_is_told_how_to_get_it() -> None:
    assert "-m ensurepip" in build_tools.missing_tools({"pip": None})[0]


def test_without_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(MissingDependencyError, name="tensorflow", mentions=["pip install tensorflow"]):
        observe()
