"""The recipe of a build as values and pure functions: versions, cache key and environment.

Example:
    >>> Options().built_in
    ('gloo',)
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tfdist.native.build_target import Target

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"  # of the registry's source archive
REVISION = 3  # goes up when this recipe makes another library of the same sources

# What the build sees instead of what is installed: CMake 4 refuses Horovod's CMake files, setuptools 70 its setup.py.
TOOLS = ("cmake>=3.26,<4", "setuptools<70", "wheel<0.46", "cloudpickle", "psutil", "pyyaml", "packaging")
RUNTIME = ("cloudpickle", "psutil", "pyyaml", "packaging")

# Ours to decide: a variable of these names would change what is built behind the back of the key.
_OURS = (
    *("HOROVOD_", "CMAKE_", "CCL_", "MPI_", "I_MPI_", "MAKE", "MFLAGS", "DESTDIR"),
    *("CUDA_HOME", "CUDA_PATH", "CUDACXX", "CUDAFLAGS", "CUDAARCHS", "CUDAHOSTCXX", "CUDAToolkit_"),
    *("PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_HASHES"),
)
_HEADERS = ("external/highwayhash", "external/farmhash_archive/src")  # TensorFlow includes them as if they stood on top
_BYTES_PER_JOB = 1_500_000_000  # what the compiler takes for a file that includes TensorFlow's headers


@dataclass(frozen=True, kw_only=True)
class Toolkit:
    """The toolkit of an option: CUDA, or an MPI.

    Attributes:
        version: its release, ``13.0``.
        home: the folder of one that is installed; None for the wheels.
    """

    version: str
    home: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of a build: the parts of Horovod besides gloo.

    Attributes:
        cuda: the toolkit that compiles the parts for GPUs; with one NCCL is built in, too.
        mpi: the MPI that is built in.
    """

    cuda: Toolkit | None = None
    mpi: Toolkit | None = None

    @property
    def built_in(self) -> tuple[str, ...]:
        """The transports, as ``hvd.gloo_built()`` and its like will name them."""
        return ("gloo", *(("mpi",) if self.mpi else ()), *(("nccl",) if self.cuda else ()))


def key(target: Target, options: Options) -> str:
    """Return the name under which a wheel is kept: everything that its library depends on.

    Example:
        >>> key(Target.example(), Options())
        'horovod-0.28.1-tensorflow-2.21.0-cp311-linux_x86_64-glibc2.36-gloo-r3'
    """
    parts = (
        f"horovod-{VERSION}",
        f"{target.package}-{target.version}",
        target.python_tag,
        target.platform,
        target.libc,
        "-".join(options.built_in),
        f"cuda{options.cuda.version}" if options.cuda else "",
        options.mpi.version if options.mpi else "",
        f"r{REVISION}",
    )
    return "-".join(part for part in parts if part)


def wheel_name(target: Target) -> str:
    """Return the file name of the wheel.

    Example:
        >>> wheel_name(Target.example())
        'horovod-0.28.1-cp311-cp311-linux_x86_64.whl'
    """
    return f"horovod-{VERSION}-{target.python_tag}-{target.python_tag}-{target.platform}.whl"


def jobs(*, processors: int, available_bytes: int) -> int:
    """Return the number of files to compile at once: one per processor, as far as memory allows.

    Example:
        >>> jobs(processors=64, available_bytes=8_000_000_000)
        5
    """
    return max(1, min(processors, available_bytes // _BYTES_PER_JOB))


@dataclass(frozen=True, kw_only=True)
class Folders:
    """The folders of a build, all inside its temporary folder.

    Attributes:
        tools: the packages of `TOOLS`, which the build sees before all others.
        libraries: a link to the folder that holds ``tensorflow``; its own path may have spaces, which CMake splits.
        temporary: for what programs put aside.
    """

    tools: Path
    libraries: Path
    temporary: Path


@dataclass(frozen=True, kw_only=True)
class Extra:
    """The additions of an option to the environment of a build.

    Attributes:
        variables: of the environment.
        path: folders in front of PATH.
        libraries: folders in front of LD_LIBRARY_PATH.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    path: tuple[Path, ...] = ()
    libraries: tuple[Path, ...] = ()


def clean(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without what would change the build; proxies, indexes and the choice of compiler stay.

    Example:
        >>> clean({"PATH": "/bin", "CXX": "g++-12", "HOROVOD_WITH_PYTORCH": "1"})
        {'PATH': '/bin', 'CXX': 'g++-12'}
    """
    return {name: value for name, value in inherited.items() if not name.startswith(_OURS)}


def quiet_pip(inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the environment in which pip asks nothing and fails in English, which causes are looked for in."""
    quiet = {"PIP_NO_INPUT": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off", "PIP_NO_COLOR": "1"}
    return {**clean(inherited), **quiet, "LC_ALL": "C.UTF-8"}


def environment(
    inherited: Mapping[str, str], folders: Folders, options: Options, *, jobs: int, extras: Iterable[Extra] = ()
) -> dict[str, str]:
    """Return the environment in which Horovod is fetched and built."""
    extras = tuple(extras)
    include = folders.libraries / "tensorflow" / "include"
    switches = {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITH_MPI" if options.mpi else "HOROVOD_WITHOUT_MPI": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_WITHOUT_NVTX": "1",
    }
    ours = {
        **switches,
        "PATH": _joined(
            *(path for extra in extras for path in extra.path), folders.tools / "bin", inherited.get("PATH")
        ),
        "PYTHONPATH": _joined(folders.tools, folders.libraries, inherited.get("PYTHONPATH")),
        "CPLUS_INCLUDE_PATH": _joined(*(include / part for part in _HEADERS), inherited.get("CPLUS_INCLUDE_PATH")),
        "MAKEFLAGS": f"-j{jobs}",
        "TMPDIR": str(folders.temporary),
        "CCACHE_DISABLE": "1",  # it would leave files outside of the folder, and Horovod takes it unasked
        "PIP_USER": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",  # CMake asks TensorFlow for its folders and reads what it prints
    }
    libraries = [path for extra in extras for path in extra.libraries]
    if libraries:
        ours["LD_LIBRARY_PATH"] = _joined(*libraries, inherited.get("LD_LIBRARY_PATH"))
    for extra in extras:
        ours.update(extra.variables)
    return {**quiet_pip(inherited), **ours}


def _joined(*parts: Path | str | None) -> str:
    return os.pathsep.join(str(part) for part in parts if part)
