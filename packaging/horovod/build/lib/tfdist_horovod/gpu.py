"""CUDA and NCCL for a build, out of wheels: what is fetched, and the folder of links in which CMake finds it.

CUDA's compiler is in the wheels of CUDA 13 alone (those of CUDA 12 hold an assembler and no compiler), so Horovod's
three small kernels are compiled by CUDA 13, and its runtime is linked statically. TensorFlow keeps its own CUDA; both
share the driver, streams and memory. NCCL is the library that TensorFlow's extra `and-cuda` names.

Example:
    >>> nccl_requirement(['nvidia-nccl-cu12<3.0,>=2.27.7; extra == "and-cuda"'])
    'nvidia-nccl-cu12<3.0,>=2.27.7'
"""

import importlib.metadata
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement

from tfdist.errors import ConfigError, UnsupportedError
from tfdist_horovod.edits import Edit
from tfdist_horovod.recipe import Extra, Toolkit

_RELEASE = "13.0"
FROM_WHEELS = Toolkit(version=_RELEASE)
COMPILER = tuple(
    f"{name}=={_RELEASE}.*"
    for name in ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime", "nvidia-cuda-cccl")
)
_WHEELS_HOME = "nvidia/cu13"
NCCL = "nvidia/nccl"  # in the folder of packages, beside `horovod`
RUN_PATH = f"$ORIGIN/../../{NCCL}/lib"
_ASK_SECONDS = 20.0

_STREAM_DECLARED = """\
// Forward declaration of AsGpuStreamValue
namespace stream_executor {
namespace gpu {
GpuStreamHandle AsGpuStreamValue(Stream* stream);
} // namespace stream_executor
} // namespace gpu
#if TENSORFLOW_VERSION >= 2011000000
#include "tensorflow/compiler/xla/stream_executor/stream.h"
#else
#include "tensorflow/stream_executor/stream.h"
#endif // TENSORFLOW_VERSION >= 2011000000
"""
_STREAM_DEFINED = """\
#include "tensorflow/compiler/xla/stream_executor/stream.h"
namespace stream_executor {
namespace gpu {
namespace {
GpuStreamHandle AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
} // namespace
} // namespace gpu
} // namespace stream_executor
"""

EDITS = (
    Edit(
        "horovod/tensorflow/mpi_ops.cc",
        _STREAM_DECLARED,
        _STREAM_DEFINED,
        why="later TensorFlows do not export the function; the stream itself says which stream of CUDA it is",
    ),
    Edit(
        "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        "set(CMAKE_CUDA_STANDARD 17)",
        why="CUDA 13's headers are C++17",
    ),
    Edit(
        "horovod/common/ops/cuda/CMakeLists.txt",
        "add_library(compatible_horovod_cuda_kernels cuda_kernels.cu)",
        "add_library(compatible_horovod_cuda_kernels EXCLUDE_FROM_ALL cuda_kernels.cu)",
        why="it is for a TensorFlow of the old C++ ABI",
    ),
)


def toolkit(home: Path | None) -> Toolkit:
    """Return the CUDA toolkit to compile with: that of a folder, or that of the wheels."""
    if home is None:
        return FROM_WHEELS
    nvcc = home.expanduser().absolute() / "bin" / "nvcc"
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=_ASK_SECONDS, check=False)
        said = done.stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"{nvcc} cannot be asked for its version ({error}). Name the folder of a CUDA toolkit, with bin/nvcc in "
            "it, or leave --cuda-home out: then the compiler comes as a wheel.",
            name="--cuda-home",
            path=nvcc,
        ) from error
    found = re.search(r"release (\d+\.\d+)", said)
    if found is None:
        raise ConfigError(
            f"{nvcc} --version names no release: {said.strip()[:200]!r}. Name a CUDA toolkit's folder.",
            name="--cuda-home",
            path=nvcc,
            received=said.strip()[:200],
        )
    return Toolkit(version=found[1], home=nvcc.parents[1])


def nccl_requirement(declared: Iterable[str]) -> str:
    """Return the requirement of NCCL that TensorFlow declares for GPUs."""
    for requirement in map(Requirement, declared):
        if requirement.name.startswith("nvidia-nccl-"):
            return f"{requirement.name}{requirement.specifier}"
    raise UnsupportedError(
        "this TensorFlow names no NCCL among what it can use, so it has no CUDA in it and Horovod would have no GPU to "
        "work for. Leave --gpu out, or install the package tensorflow.",
        name="--gpu",
    )


def nccl_of(package: str) -> str:
    """Return the requirement of NCCL of an installed TensorFlow."""
    return nccl_requirement(importlib.metadata.requires(package) or ())


def link_toolkit(packages: Path) -> Path:
    """Give the wheels of CUDA the names under which CMake looks; return the toolkit's folder."""
    home = packages / _WHEELS_HOME
    (home / "lib64").symlink_to("lib")
    (runtime,) = (home / "lib").glob("libcudart.so.*")
    (home / "lib" / "libcudart.so").symlink_to(runtime.name)
    return home


def link_nccl(installed: Path, folder: Path) -> Path:
    """Make a folder of NCCL with the name that a linker looks for; return it."""
    (folder / "lib").mkdir(parents=True)
    (folder / "include").symlink_to((installed / "include").absolute())
    for name in ("libnccl.so", "libnccl.so.2"):
        (folder / "lib" / name).symlink_to((installed / "lib" / "libnccl.so.2").absolute())
    return folder


def extra(cuda: Path, nccl: Path) -> Extra:
    """Return the additions of GPUs to the environment of a build."""
    variables = {
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(cuda),
        "CUDAToolkit_ROOT": str(cuda),
        "HOROVOD_NCCL_HOME": str(nccl),
        "HOROVOD_NCCL_LINK": "shared",
    }
    return Extra(variables=variables, path=(cuda / "bin",))
