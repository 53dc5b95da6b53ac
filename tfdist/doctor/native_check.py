"""The compiled operations of tfdist, and the collective backend that `auto` selects on this machine."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist import variables
from tfdist.cluster.strategy_table import COLLECTIVES
from tfdist.collectives.collective_selection import without_native
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
    """The state of the compiled operations: present ones, missing ones, and why none can be compiled."""

    is_wanted: bool = True
    kept: tuple[Path, ...] = ()
    missing: tuple[str, ...] = ()
    compiler: str | None = None
    error: str = ""


def observe_native(environ: Mapping[str, str]) -> Native:
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


def judge_native(native: Native) -> Finding:
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


@dataclass(frozen=True, kw_only=True)
class Collectives:
    """The state of the native collectives: the requested backend, the compiled library, and why it is missing."""

    asked: str = ""
    kept: Path | None = None
    missing: str = ""


def observe_collectives(environ: Mapping[str, str] = os.environ) -> Collectives:
    asked = variables.COLLECTIVES.read(environ)
    missing = library.why_not(library.COLLECTIVES, environ)
    kept = None if missing else library.find(library.COLLECTIVES, build_target.observe(), environ)
    return Collectives(asked=asked, kept=kept, missing=missing)


def judge_collectives(seen: Collectives, gpus: Sequence[str]) -> Finding:
    """Judge the backend that workers take, given the GPUs that TensorFlow can use."""
    name = "collectives"
    if seen.asked and seen.asked not in COLLECTIVES:
        why = f"it must be one of {', '.join(COLLECTIVES)}, so a multi-worker strategy is refused"
        return note(name, f"{variables.COLLECTIVES.name} is {seen.asked!r}", why, f"unset {variables.COLLECTIVES.name}")
    if seen.asked not in ("", "auto"):
        return ok(name, f"multi-worker takes {seen.asked} collectives ({variables.COLLECTIVES.name})")
    if gpus:
        return ok(name, "multi-worker takes TensorFlow's collectives: there are GPUs")
    if seen.missing:
        why = without_native(seen.missing).why
        return note(name, "multi-worker takes TensorFlow's collectives", why, "apt-get install g++")
    how = f"compiled: {seen.kept}" if seen.kept else "compiled at the first start or by tfdist build ops"
    return ok(name, f"multi-worker takes native collectives, {how}")
