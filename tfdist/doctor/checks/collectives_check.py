"""Check which collective backend `auto` selects for `multi-worker` on this machine.

Example:
    >>> judge(Engines(), gpus=()).seen
    'multi-worker takes native collectives, compiled at the first start or by tfdist build ops'
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist import variables
from tfdist.cluster.strategy_table import COLLECTIVES
from tfdist.collectives.selection.collective_selection import without_native
from tfdist.doctor.finding import Finding, note, ok
from tfdist.native import build_target, library


@dataclass(frozen=True, kw_only=True)
class Engines:
    """What there is of the native collectives.

    Attributes:
        asked: what the environment asks for; empty: nothing.
        kept: the compiled library.
        missing: why they cannot be had; empty where they can.
    """

    asked: str = ""
    kept: Path | None = None
    missing: str = ""


def observe(environ: Mapping[str, str] = os.environ) -> Engines:
    """Look for the library and for a compiler; nothing is compiled or loaded."""
    asked = variables.COLLECTIVES.read(environ)
    missing = library.why_not(library.COLLECTIVES, environ)
    kept = None if missing else library.find(library.COLLECTIVES, build_target.observe(), environ)
    return Engines(asked=asked, kept=kept, missing=missing)


def judge(engines: Engines, gpus: Sequence[str]) -> Finding:
    """Say which engine the workers take, given also the GPUs that TensorFlow can use."""
    name = "collectives"
    if engines.asked and engines.asked not in COLLECTIVES:
        why = f"it must be one of {', '.join(COLLECTIVES)}, so a multi-worker strategy is refused"
        return note(
            name, f"{variables.COLLECTIVES.name} is {engines.asked!r}", why, f"unset {variables.COLLECTIVES.name}"
        )
    if engines.asked not in ("", "auto"):
        return ok(name, f"multi-worker takes {engines.asked} collectives ({variables.COLLECTIVES.name})")
    if gpus:
        return ok(name, "multi-worker takes TensorFlow's collectives: there are GPUs")
    if engines.missing:
        why = without_native(engines.missing).why
        return note(name, "multi-worker takes TensorFlow's collectives", why, "apt-get install g++")
    how = f"compiled: {engines.kept}" if engines.kept else "compiled at the first start or by tfdist build ops"
    return ok(name, f"multi-worker takes native collectives, {how}")
