"""Versions: what is required against what is installed, and the combinations known to fail."""

import pytest

from tfdist.doctor import software_check
from tfdist.doctor.finding import Level
from tfdist.doctor.framework import Framework
from tfdist.doctor.software_check import Needs

CUDA_BUILD = {"is_cuda_build": True, "cuda_version": "12.5.1", "cudnn_version": "9"}
GOOD = Framework(version="2.21.0", keras="3.15.1", build=CUDA_BUILD)


@pytest.mark.parametrize(
    ("running", "level"),
    [("3.11.7", Level.OK), ("3.13.0", Level.OK), ("3.10.13", Level.PROBLEM), ("3.14.0", Level.PROBLEM)],
)
def test_python(running: str, level: Level) -> None:
    (finding,) = software_check.judge_python({"tfdist": Needs(python=">=3.11,<3.14"), "keras": Needs()}, running)
    assert (finding.level, finding.seen) == (level, running)


@pytest.mark.parametrize(
    ("need", "installed", "said"),
    [
        ("protobuf>=6.31.1,<8", {"protobuf": "5.29.0"}, "protobuf 5.29.0"),
        ("protobuf>=6.31.1,<8", {"protobuf": "8.0.0"}, "protobuf 8.0.0"),
        ("protobuf>=6.31.1,<8", {}, "protobuf is not installed"),
        ("ml_dtypes<1.0.0,>=0.5.1", {"ml-dtypes": "0.3.2"}, "ml_dtypes 0.3.2"),
    ],
)
def test_unmet_requirement(need: str, installed: dict[str, str], said: str) -> None:
    needs = {"tensorflow": Needs(packages=(need,))}
    (finding,) = software_check.judge_requirements(needs, {"tensorflow": "2.21.0", **installed})
    assert (finding.level, finding.seen) == (Level.PROBLEM, said)
    assert "tensorflow 2.21.0 needs" in finding.why
    assert finding.cure.startswith("python -m pip install ")


@pytest.mark.parametrize(
    ("need", "installed"),
    [
        ("protobuf>=6.31.1,<8", {"protobuf": "7.36.2"}),
        ("ml_dtypes<1.0.0,>=0.5.1", {"ml-dtypes": "0.6.0"}),
        ('nvidia-nccl-cu12>=2.27.7; extra == "and-cuda"', {}),
        ('winonly; sys_platform == "win32"', {}),
        ("tensorflow>=2.16.2,<2.23", {"tensorflow-cpu": "2.21.0"}),
    ],
)
def test_met_requirement(need: str, installed: dict[str, str]) -> None:
    (finding,) = software_check.judge_requirements({"tfdist": Needs(packages=(need,))}, installed)
    assert finding.level is Level.OK


def test_tensorflow_loads() -> None:
    (finding,) = software_check.judge_tensorflow(GOOD, {"tensorflow": "2.21.0"})
    assert (finding.level, finding.seen) == (Level.OK, "2.21.0, built for CUDA 12.5.1, cuDNN 9")
    (finding,) = software_check.judge_tensorflow(Framework(version="2.21.0"), {"tensorflow-cpu": "2.21.0"})
    assert finding.seen == "2.21.0, built without CUDA"


def test_tensorflow_does_not_load() -> None:
    (finding,) = software_check.judge_tensorflow(Framework(error="ImportError: no symbol"), {"tensorflow": "2.21.0"})
    assert finding.level is Level.PROBLEM
    assert finding.seen.startswith("tensorflow 2.21.0 ")
    assert finding.seen.endswith(": ImportError: no symbol")
    (finding,) = software_check.judge_tensorflow(Framework(error="No module named 'tensorflow'"), {})
    assert finding.cure == "python -m pip install tfdist"


def test_two_tensorflows() -> None:
    first, second = software_check.judge_tensorflow(GOOD, {"tensorflow": "2.21.0", "tensorflow-cpu": "2.20.0"})
    assert (first.level, second.level) == (Level.PROBLEM, Level.OK)
    assert first.seen == "tensorflow 2.21.0 and tensorflow-cpu 2.20.0"
    assert "uninstall -y tensorflow tensorflow-cpu" in first.cure


@pytest.mark.parametrize(
    ("framework", "packages", "environ", "level", "word"),
    [
        (GOOD, {"keras": "3.15.1"}, {}, Level.OK, "3.15.1"),
        (GOOD, {"keras": "3.15.1"}, {"TF_USE_LEGACY_KERAS": "0"}, Level.OK, "3.15.1"),
        (GOOD, {"keras": "3.15.1"}, {"TF_USE_LEGACY_KERAS": "True"}, Level.PROBLEM, "TF_USE_LEGACY_KERAS"),
        (GOOD, {"keras": "3.15.1", "tf-keras": "2.20.0"}, {}, Level.NOTE, "tf_keras 2.20.0"),
        (Framework(error="x"), {"keras": "2.15.0"}, {}, Level.PROBLEM, "Keras 2.15.0"),
        (Framework(keras_error="No module named 'jax'"), {"keras": "3.15.1"}, {}, Level.PROBLEM, "jax"),
    ],
)
def test_keras(
    framework: Framework, packages: dict[str, str], environ: dict[str, str], level: Level, word: str
) -> None:
    (finding,) = software_check.judge_keras(framework, packages, environ)
    assert finding.level is level
    assert word in finding.seen


@pytest.mark.parametrize(
    ("framework", "packages", "level"),
    [
        (GOOD, {}, Level.OK),
        (Framework(error="it hangs"), {"tensorflow-cpu": "2.21.0", "keras": "3.15.1"}, Level.OK),
        (Framework(version="2.21.77", keras="3.15.1"), {}, Level.NOTE),
        (Framework(version="2.23.0", keras="3.15.1"), {}, Level.PROBLEM),
        (Framework(version="2.21.0", keras="2.15.0"), {}, Level.PROBLEM),
    ],
)
def test_the_pair(framework: Framework, packages: dict[str, str], level: Level) -> None:
    (finding,) = software_check.judge_pair(framework, packages)
    assert finding.level is level
    assert "with Keras" in finding.seen
    assert ("docs/compatibility.md" in finding.seen) is (level is not Level.PROBLEM)
    assert software_check.judge_pair(Framework(error="x"), {}) == []


@pytest.mark.parametrize(
    ("environ", "config", "level", "word"),
    [
        ({}, "", Level.OK, "tensorflow"),
        ({}, '{"backend": "jax"}', Level.PROBLEM, "keras.json"),
        ({"KERAS_BACKEND": "tensorflow"}, '{"backend": "jax"}', Level.OK, "tensorflow"),
        ({"KERAS_BACKEND": "torch"}, "", Level.PROBLEM, "'torch' (from KERAS_BACKEND)"),
        ({}, "not json", Level.OK, "tensorflow"),
        ({}, "[1]", Level.OK, "tensorflow"),
    ],
)
def test_keras_backend(environ: dict[str, str], config: str, level: Level, word: str) -> None:
    (finding,) = software_check.judge_keras_backend(environ, config)
    assert finding.level is level
    assert word in finding.seen


def test_keras_config_is_read_from_the_home_of_keras(tmp_path) -> None:
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    assert "jax" in software_check.keras_config({"KERAS_HOME": str(tmp_path)})
    assert software_check.keras_config({"HOME": str(tmp_path)}) == ""


@pytest.mark.parametrize(
    ("numpy", "tensorflow", "level"),
    [("2.4.6", "2.21.0", Level.OK), ("1.26.4", "2.16.2", Level.OK), ("2.0.0", "2.16.2", Level.PROBLEM)],
)
def test_numpy(numpy: str, tensorflow: str, level: Level) -> None:
    (finding,) = software_check.judge_numpy({"numpy": numpy, "tensorflow": tensorflow})
    assert finding.level is level


@pytest.mark.parametrize(
    ("numpy", "pyarrow", "level"),
    [("1.26.4", "26.0.1", Level.WARNING), ("1.26.4", "25.0.0", Level.OK), ("2.4.6", "26.0.1", Level.OK)],
)
def test_pyarrow_that_needs_another_numpy(numpy: str, pyarrow: str, level: Level) -> None:
    (finding,) = software_check.judge_numpy({"numpy": numpy, "pyarrow": pyarrow})
    assert finding.level is level
    assert ("pyarrow<26" in finding.cure) is (level is Level.WARNING)


def test_tensorflow_io() -> None:
    assert software_check.judge_tensorflow_io({"tensorflow": "2.21.0"}) == []
    (finding,) = software_check.judge_tensorflow_io({"tensorflow": "2.21.0", "tensorflow-io": "0.37.1"})
    assert finding.level is Level.WARNING
    assert finding.seen == "tensorflow-io 0.37.1 with TensorFlow 2.21.0"
    (finding,) = software_check.judge_tensorflow_io({"tensorflow": "2.16.2", "tensorflow-io": "0.37.1"})
    assert finding.level is Level.OK


def test_what_is_installed_here() -> None:
    packages = software_check.installed_packages()
    needs = software_check.declared_needs()
    assert packages["keras"].startswith("3.")
    assert needs["keras"].python.startswith(">=3")
    assert any(need.startswith("protobuf") for need in needs["tensorflow"].packages)
