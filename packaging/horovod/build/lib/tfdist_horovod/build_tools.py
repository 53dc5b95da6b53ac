"""The tools of a build that only the machine can bring.

Example:
    >>> missing_tools({"compiler": "/usr/bin/c++", "C compiler": "/usr/bin/cc", "make": "/usr/bin/make"})
    ()
"""

import importlib.util
import sys
from collections.abc import Mapping

from tfdist.errors import MissingDependencyError
from tfdist.native.build_target import COMPILERS, find_program


def find_tools(environ: Mapping[str, str]) -> dict[str, str | None]:
    """Return the path of each tool that no wheel brings; None for one that is not on PATH."""
    return {
        "compiler": find_program(environ, "CXX", *COMPILERS),
        "C compiler": find_program(environ, "CC", "cc", "gcc", "clang"),
        "make": find_program(environ, "", "make", "gmake"),
        "pip": sys.executable if importlib.util.find_spec("pip") else None,
    }


def missing_tools(tools: Mapping[str, str | None]) -> tuple[str, ...]:
    """Return the missing tools, each with the command that installs it.

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
    """Raise unless every tool is there."""
    missing = missing_tools(tools)
    if missing:
        raise MissingDependencyError("Horovod cannot be built here:\n" + "\n".join(f"  {line}" for line in missing))
