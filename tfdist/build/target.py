"""What is built for: this Python, the TensorFlow installed in it, and the tools that only the machine can bring.

Example:
    >>> missing_tools({"compiler": "/usr/bin/c++", "C compiler": "/usr/bin/cc", "make": "/usr/bin/make"})
    ()
"""

import importlib.metadata
import importlib.util
import platform
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import MissingDependencyError

PACKAGES = ("tensorflow", "tensorflow-cpu", "tensorflow-rocm", "intel-tensorflow", "tf-nightly")


@dataclass(frozen=True, kw_only=True)
class Target:
    """What a wheel is made for.

    Attributes:
        package: the distribution that brings the module ``tensorflow``.
        version: its version.
        root: the folder that holds the package ``tensorflow``.
        python: this interpreter.
        python_tag: as wheels write it, ``cp311``.
        platform: as wheels write it, ``linux_x86_64``.
        libc: name and version of the C library; a library built on a newer one does not load on an older one.
    """

    package: str
    version: str
    root: Path
    python: str
    python_tag: str
    platform: str
    libc: str

    @classmethod
    def example(cls) -> "Target":
        """Return a target for the examples in docstrings."""
        return cls(
            package="tensorflow",
            version="2.21.0",
            root=Path("/env/lib/python3.11/site-packages"),
            python="/env/bin/python",
            python_tag="cp311",
            platform="linux_x86_64",
            libc="glibc2.36",
        )


def observe() -> Target:
    """Return what is installed here; TensorFlow is found, not loaded.

    Raises:
        MissingDependencyError: TensorFlow is not installed, or without the headers that a build needs.
    """
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"TensorFlow is not installed in {sys.executable}; Horovod is built for one. "
            f"Install it: {sys.executable} -m pip install tensorflow"
        )
    root = Path(next(iter(spec.submodule_search_locations))).parent
    if not (root / "tensorflow" / "include" / "tensorflow" / "core").is_dir():
        raise MissingDependencyError(
            f"the TensorFlow in {root} comes without its headers (tensorflow/include), which the build needs. "
            f"Install the wheel of the registry: {sys.executable} -m pip install --force-reinstall tensorflow"
        )
    package, version = _tensorflow()
    return Target(
        package=package,
        version=version,
        root=root,
        python=sys.executable,
        python_tag=f"cp{sys.version_info.major}{sys.version_info.minor}",
        platform=sysconfig.get_platform().replace("-", "_").replace(".", "_"),
        libc="".join(platform.libc_ver()),
    )


def _tensorflow() -> tuple[str, str]:
    for name in PACKAGES:
        try:
            return name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise MissingDependencyError(
        f"a module tensorflow is there, but none of the packages {', '.join(PACKAGES)} is installed, so its version is "
        f"not known. Install the wheel of the registry: {sys.executable} -m pip install tensorflow"
    )


def version_of_tensorflow() -> str:
    """Return the version of the TensorFlow that is installed; empty when there is none."""
    try:
        return _tensorflow()[1]
    except MissingDependencyError:
        return ""


def find_tools(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the path of each tool that no wheel brings; None for one that is not on PATH."""
    path = environ.get("PATH", "")

    def first(variable: str, *names: str) -> str | None:
        chosen = environ.get(variable, "").split()[:1]
        return next(filter(None, (shutil.which(name, path=path) for name in chosen or names)), None)

    return {
        "compiler": first("CXX", "c++", "g++", "clang++"),
        "C compiler": first("CC", "cc", "gcc", "clang"),
        "make": first("", "make", "gmake"),
        "pip": sys.executable if importlib.util.find_spec("pip") else None,
    }


def missing_tools(tools: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return what is missing, each with the command that cures it.

    Example:
        >>> missing_tools({"make": None})
        ('make is not on PATH; as root: apt-get install make; without root: conda install -c conda-forge make',)
    """
    packages = {"compiler": ("g++", "gxx"), "C compiler": ("gcc", "gcc"), "make": ("make", "make")}
    said = []
    for name, path in tools.items():
        if path:
            continue
        if name == "pip":
            said.append(f"pip is not installed in {sys.executable}; {sys.executable} -m ensurepip")
            continue
        debian, conda = packages[name]
        words = {"compiler": "no C++ compiler (g++)", "C compiler": "no C compiler (gcc)", "make": "make"}[name]
        verb = "is not on PATH" if name == "make" else "is on PATH"
        said.append(
            f"{words} {verb}; as root: apt-get install {debian}; without root: conda install -c conda-forge {conda}"
        )
    return tuple(said)


def require_tools(tools: Mapping[str, str | None]) -> None:
    """Raise unless every tool is there.

    Raises:
        MissingDependencyError: a tool is missing; all that are missing are named, with what installs them.
    """
    missing = missing_tools(tools)
    if missing:
        raise MissingDependencyError("Horovod cannot be built here:\n" + "\n".join(f"  {line}" for line in missing))
