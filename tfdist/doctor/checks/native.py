"""The ops that tfdist compiles for itself: whether they are kept, or can be compiled, or NumPy does their work.

Example:
    >>> judge(Native(compiler="/usr/bin/g++")).level.name
    'OK'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.doctor.finding import Finding, note, ok
from tfdist.errors import TfdistError
from tfdist.native import library, ops, target

_WHY = "records are read through NumPy, with the same results and more of the processor's time"


@dataclass(frozen=True, kw_only=True)
class Native:
    """What there is of the ops.

    Attributes:
        is_wanted: whether TFDIST_NATIVE leaves them on.
        kept: the library that was compiled for the TensorFlow that is installed.
        compiler: the path of the C++ compiler.
        error: why they cannot be compiled, whatever the compiler; empty where they can.
    """

    is_wanted: bool = True
    kept: Path | None = None
    compiler: str | None = None
    error: str = ""


def observe(environ: Mapping[str, str]) -> Native:
    """Look for the library and for a compiler; nothing is compiled or loaded."""
    compiler = target.find_program(environ, "CXX", *target.COMPILERS)
    try:
        wanted = ops.is_wanted(environ)
        return Native(
            is_wanted=wanted, kept=library.find(library.RECORDS, target.observe(), environ), compiler=compiler
        )
    except TfdistError as error:
        return Native(compiler=compiler, error=str(error))


def judge(native: Native) -> Finding:
    """Say who reads records."""
    if native.error:
        return note("native", native.error, _WHY)
    if not native.is_wanted:
        return note("native", f"off ({ops.SWITCH}=0)", _WHY, f"unset {ops.SWITCH}")
    if native.kept:
        return ok("native", f"compiled: {native.kept}")
    if native.compiler:
        return ok("native", f"not compiled yet; the first use does it with {native.compiler}, or tfdist build ops")
    return note("native", "not compiled, and there is no compiler", _WHY, "apt-get install g++")
