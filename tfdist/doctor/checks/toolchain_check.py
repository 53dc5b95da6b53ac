"""Compiler and make: what only a build from source needs.

Example:
    >>> judge(Toolchain(compiler="g++ 12.2.0", make="GNU Make 4.3"))[0].level.name
    'OK'
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.doctor import child
from tfdist.doctor.finding import Finding, note, ok

_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """First line of each tool's ``--version``; empty when the tool is missing."""

    compiler: str = ""
    make: str = ""


def observe(environ: Mapping[str, str] = os.environ) -> Toolchain:
    """Ask each tool for its version."""
    compilers = [environ["CXX"]] if environ.get("CXX") else ["c++", "g++", "clang++"]
    return Toolchain(compiler=next(filter(None, map(_version, compilers)), ""), make=_version("make"))


def _version(tool: str) -> str:
    program = shutil.which(tool)
    if program is None:
        return ""
    outcome = child.run([program, "--version"], timeout_seconds=_SECONDS)
    return outcome.output.splitlines()[0] if outcome.code == 0 and outcome.output else ""


def judge(tools: Toolchain) -> list[Finding]:
    """Say which builds from source are possible; training needs none."""
    needs = "training needs it not; `tfdist build horovod` does"
    findings = []
    for name, version, package in (("compiler", tools.compiler, "g++"), ("make", tools.make, "make")):
        if version:
            findings.append(ok(name, version))
        else:
            findings.append(note(name, "not found", needs, f"apt-get install {package}"))
    return findings
