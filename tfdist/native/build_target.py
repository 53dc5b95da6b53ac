"""The target of native builds: this Python, the installed TensorFlow, and the compiler."""

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
    """The installation for which native parts are built."""

    package: str  # the name of the distribution that installs the module ``tensorflow``
    version: str
    root: Path  # the folder of the package ``tensorflow``
    python: str
    # the Python version as wheels write it, ``cp311``; platform follows the same style, ``linux_x86_64``
    python_tag: str
    platform: str
    libc: str  # the name and version of the C library; a library built with a newer one does not load on an older one

    @property
    def include(self) -> Path:
        """The folder of TensorFlow's headers."""
        return self.root / "tensorflow" / "include"

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
    """Return the target of this installation; TensorFlow is found, not loaded."""
    spec = importlib.util.find_spec("tensorflow")
    if spec is None or not spec.submodule_search_locations:
        raise MissingDependencyError(
            f"TensorFlow is not installed in {sys.executable}; native parts are built for one. "
            f"Install it: {sys.executable} -m pip install tensorflow",
            name="tensorflow",
        )
    root = Path(next(iter(spec.submodule_search_locations))).parent
    if not (root / "tensorflow" / "include" / "tensorflow" / "core").is_dir():
        raise MissingDependencyError(
            f"the TensorFlow in {root} comes without its headers (tensorflow/include), which a build needs. "
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
    """Return the version of the installed TensorFlow; an empty string if there is none."""
    try:
        return _tensorflow()[1]
    except MissingDependencyError:
        return ""


COMPILERS = ("c++", "g++", "clang++")


def find_program(environ: Mapping[str, str], variable: str, *names: str) -> str | None:
    """Return the path of the program that a variable or one of these names gives, or None."""
    chosen = environ.get(variable, "").split()[:1]
    found = (shutil.which(name, path=environ.get("PATH", "")) for name in chosen or names)
    return next(filter(None, found), None)


def missing_compiler() -> str:
    """Return a sentence that says that there is no C++ compiler, with the commands that install one."""
    return (
        "no C++ compiler (g++) is on PATH; as root: apt-get install g++; without root: conda install -c conda-forge gxx"
    )
