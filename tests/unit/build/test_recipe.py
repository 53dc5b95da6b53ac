"""The key of the cache and the environment of a build, as pure functions."""

from dataclasses import replace
from pathlib import Path

import pytest

from tfdist.native.build_target import Target
from tfdist_horovod import recipe
from tfdist_horovod.recipe import Extra, Folders, Options, Toolkit

TARGET = Target.example()
FOLDERS = Folders(tools=Path("/w/tools"), libraries=Path("/w/libraries"), temporary=Path("/w/temporary"))


@pytest.mark.parametrize(
    "other",
    [
        replace(TARGET, version="2.20.0"),
        replace(TARGET, package="tensorflow-cpu"),
        replace(TARGET, python_tag="cp312"),
        replace(TARGET, platform="linux_aarch64"),
        replace(TARGET, libc="glibc2.28"),
    ],
)
def test_whatever_the_library_depends_on_is_in_the_key(other: Target) -> None:
    assert recipe.key(TARGET, Options()) != recipe.key(other, Options())


def test_options_and_the_recipe_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    toolkits = (None, Toolkit(version="13.0"), Toolkit(version="12.4", home=Path("/usr/local/cuda")))
    keys = {recipe.key(TARGET, Options(cuda=toolkit)) for toolkit in toolkits}
    keys |= {recipe.key(TARGET, Options(mpi=Toolkit(version=version))) for version in ("openmpi5", "mpich4.1-0a1b2c3d")}
    monkeypatch.setattr(recipe, "REVISION", recipe.REVISION + 1)
    keys.add(recipe.key(TARGET, Options()))
    assert len(keys) == 6


def test_where_tensorflow_lies_is_not_in_the_key() -> None:
    elsewhere = replace(TARGET, root=Path("/elsewhere"), python="/elsewhere/python")
    assert recipe.key(TARGET, Options()) == recipe.key(elsewhere, Options())
    assert recipe.wheel_name(TARGET) == recipe.wheel_name(elsewhere)


def test_the_environment_of_a_build() -> None:
    made = recipe.environment({"PATH": "/bin", "HOME": "/home/a"}, FOLDERS, Options(), jobs=3)
    assert made["HOME"] == "/home/a"
    assert made["PATH"] == "/w/tools/bin:/bin"
    assert made["PYTHONPATH"] == "/w/tools:/w/libraries"
    include = "/w/libraries/tensorflow/include/external"
    assert made["CPLUS_INCLUDE_PATH"] == f"{include}/highwayhash:{include}/farmhash_archive/src"
    assert made["MAKEFLAGS"] == "-j3"
    assert made["TMPDIR"] == "/w/temporary"
    switches = {name for name in made if name.startswith("HOROVOD_")}
    assert switches == {
        "HOROVOD_WITH_TENSORFLOW",
        "HOROVOD_WITH_GLOO",
        "HOROVOD_WITHOUT_MPI",
        "HOROVOD_WITHOUT_PYTORCH",
        "HOROVOD_WITHOUT_MXNET",
        "HOROVOD_WITHOUT_NVTX",
    }


def test_what_the_user_has_set_does_not_change_what_is_built() -> None:
    theirs = {"HOROVOD_WITH_PYTORCH": "1", "CMAKE_GENERATOR": "Ninja", "MAKEFLAGS": "-n", "PIP_USER": "1"}
    theirs |= {"PIP_TARGET": "/x", "CCL_ROOT": "/x", "MPI_HOME": "/x", "DESTDIR": "/x", "HOROVOD_CUDA_HOME": "/x"}
    plain = recipe.environment({}, FOLDERS, Options(), jobs=1)
    assert recipe.environment(theirs, FOLDERS, Options(), jobs=1) == plain


def test_what_the_user_has_set_to_reach_an_index_or_a_compiler_stays() -> None:
    theirs = {
        "PIP_INDEX_URL": "https://mirror/simple",
        "https_proxy": "http://proxy",
        "CXX": "g++-12",
        "PYTHONPATH": "/p",
    }
    made = recipe.environment(theirs, FOLDERS, Options(), jobs=1)
    assert made["PYTHONPATH"].split(":") == ["/w/tools", "/w/libraries", "/p"]
    assert {name: made[name] for name in theirs if name != "PYTHONPATH"} == {
        name: value for name, value in theirs.items() if name != "PYTHONPATH"
    }


def test_options_add_variables_and_folders() -> None:
    extra = Extra(
        variables={"HOROVOD_GPU_OPERATIONS": "NCCL"}, path=(Path("/cuda/bin"),), libraries=(Path("/cuda/lib"),)
    )
    made = recipe.environment({"PATH": "/bin"}, FOLDERS, Options(), jobs=1, extras=[extra])
    assert made["PATH"] == "/cuda/bin:/w/tools/bin:/bin"
    assert made["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    assert made["LD_LIBRARY_PATH"] == "/cuda/lib"
    assert "LD_LIBRARY_PATH" not in recipe.environment({}, FOLDERS, Options(), jobs=1)


def test_mpi_is_built_in_or_out() -> None:
    out = recipe.environment({}, FOLDERS, Options(), jobs=1)
    built_in = recipe.environment({}, FOLDERS, Options(mpi=Toolkit(version="openmpi5")), jobs=1)
    assert out["HOROVOD_WITHOUT_MPI"] == built_in["HOROVOD_WITH_MPI"] == "1"
    assert "HOROVOD_WITH_MPI" not in out
    assert "HOROVOD_WITHOUT_MPI" not in built_in


@pytest.mark.parametrize(("processors", "gigabytes", "jobs"), [(2, 24, 2), (64, 8, 5), (4, 1, 1), (1, 100, 1)])
def test_memory_limits_what_is_compiled_at_once(processors: int, gigabytes: int, jobs: int) -> None:
    assert recipe.jobs(processors=processors, available_bytes=gigabytes * 1_000_000_000) == jobs
