"""CUDA and NCCL out of wheels: what is asked for, and the links under which CMake finds it."""

from pathlib import Path

from tests.refusals import refused
from tfdist.errors import ConfigError, UnsupportedError
from tfdist_horovod import gpu

DECLARED = (
    "absl-py>=1.0.0",
    'nvidia-cublas-cu12<13.0,>=12.5.3.2; extra == "and-cuda"',
    'nvidia-nccl-cu12<3.0,>=2.27.7; extra == "and-cuda"',
)


def test_nccl_is_the_one_that_tensorflow_names() -> None:
    assert gpu.nccl_requirement(DECLARED) == "nvidia-nccl-cu12<3.0,>=2.27.7"
    assert gpu.nccl_requirement(['nvidia-nccl-cu12==2.19.3; extra == "and-cuda"']) == "nvidia-nccl-cu12==2.19.3"
    with refused(UnsupportedError, name="--gpu"):
        gpu.nccl_requirement(DECLARED[:1])


def test_the_toolkit_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    nvcc = tmp_path / "bin" / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    nvcc.chmod(0o755)
    assert gpu.toolkit(tmp_path) == gpu.Toolkit(version="12.4", home=tmp_path)
    nvcc.write_text("#!/bin/sh\necho nothing\n")
    with refused(ConfigError, name="--cuda-home", path=nvcc, received="nothing"):
        gpu.toolkit(tmp_path)
    nvcc.unlink()
    with refused(ConfigError, name="--cuda-home", path=nvcc, received=None):
        gpu.toolkit(tmp_path)


def test_wheels_get_the_names_under_which_cmake_looks(tmp_path: Path) -> None:
    lib = tmp_path / "nvidia" / "cu13" / "lib"
    lib.mkdir(parents=True)
    (lib / "libcudart.so.13").write_text("the runtime")
    home = gpu.link_toolkit(tmp_path)
    assert (home / "lib64" / "libcudart.so").read_text() == "the runtime"


def test_nccl_gets_the_name_that_a_linker_looks_for_and_its_wheel_stays_as_it_is(tmp_path: Path) -> None:
    installed = tmp_path / "site-packages" / "nvidia" / "nccl"
    (installed / "lib").mkdir(parents=True)
    (installed / "include").mkdir()
    (installed / "lib" / "libnccl.so.2").write_text("the library")
    (installed / "include" / "nccl.h").write_text("the header")
    folder = gpu.link_nccl(installed, tmp_path / "made")
    assert (folder / "lib" / "libnccl.so").read_text() == "the library"
    assert (folder / "lib" / "libnccl.so.2").read_text() == "the library"
    assert (folder / "include" / "nccl.h").read_text() == "the header"
    assert [path.name for path in (installed / "lib").iterdir()] == ["libnccl.so.2"]


def test_the_environment_names_both() -> None:
    extra = gpu.extra(Path("/cuda"), Path("/nccl"))
    assert extra.path == (Path("/cuda/bin"),)
    assert extra.variables["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert {"/cuda", "/nccl"} <= set(extra.variables.values())
