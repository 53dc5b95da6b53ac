"""Check tfdist's native ops: compiled already, compilable here, or replaced by TensorFlow's.

Example:
    >>> judge(Native(missing=("records",), compiler="/usr/bin/g++")).level.name
    'OK'
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist.doctor.finding import Finding, note, ok
from tfdist.errors import TfdistError
from tfdist.native import build_target, library, ops
from tfdist.variables import NATIVE

_LIBRARIES = (library.RECORDS, library.CODECS, library.STAMPS)  # `collectives` has a check of its own
_WHY = (
    "NumPy reads records, and TensorFlow's ops compress gradients and stamp steps: the same results, and more of the "
    "processor's time"
)


@dataclass(frozen=True, kw_only=True)
class Native:
    """What there is of the ops.

    Attributes:
        is_wanted: whether TFDIST_NATIVE leaves them on.
        kept: the libraries that were compiled for the TensorFlow that is installed.
        missing: the names of the others.
        compiler: the path of the C++ compiler.
        error: why they cannot be compiled, whatever the compiler; empty where they can.
    """

    is_wanted: bool = True
    kept: tuple[Path, ...] = ()
    missing: tuple[str, ...] = ()
    compiler: str | None = None
    error: str = ""


def observe(environ: Mapping[str, str]) -> Native:
    """Look for the libraries and for a compiler; nothing is compiled or loaded."""
    compiler = build_target.find_program(environ, "CXX", *build_target.COMPILERS)
    try:
        wanted = ops.is_wanted(environ)
        found = {of.name: library.find(of, build_target.observe(), environ) for of in _LIBRARIES}
        return Native(
            is_wanted=wanted,
            kept=tuple(path for path in found.values() if path),
            missing=tuple(name for name, path in found.items() if not path),
            compiler=compiler,
        )
    except TfdistError as error:
        return Native(compiler=compiler, error=str(error))


def judge(native: Native) -> Finding:
    """Say who reads records, compresses gradients and stamps steps."""
    if native.error:
        return note("native", native.error, _WHY)
    if not native.is_wanted:
        return note("native", f"off ({NATIVE.name}=0)", _WHY, f"unset {NATIVE.name}")
    if not native.missing:
        return ok("native", f"compiled: {', '.join(map(str, native.kept))}")
    missing = " and ".join(native.missing)
    if native.compiler:
        how = f"the first use does it with {native.compiler}, or tfdist build ops"
        return ok("native", f"{missing} not compiled yet; {how}")
    return note("native", f"{missing} not compiled, and there is no compiler", _WHY, "apt-get install g++")
