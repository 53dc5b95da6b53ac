"""What the doctor says of the ops that tfdist compiles for itself."""

import os
from pathlib import Path

from tfdist.doctor.checks.native import Native, judge, observe
from tfdist.doctor.finding import Level
from tfdist.native import library, target


def test_it_looks_and_compiles_nothing(tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    seen = observe(environ)
    assert (seen.is_wanted, seen.kept, seen.error) == (True, None, "")
    assert not (tmp_path / "cache").exists()
    place = library.place(library.RECORDS, target.observe(), environ)
    place.parent.mkdir(parents=True)
    place.write_bytes(library.sealed(b"a library"))
    assert observe({**environ, "TFDIST_NATIVE": "0"}) == Native(is_wanted=False, kept=place, compiler=seen.compiler)
    assert "TFDIST_NATIVE is 'x'" in observe({**environ, "TFDIST_NATIVE": "x"}).error
    assert observe({"PATH": str(tmp_path)}).compiler is None


def test_it_is_judged() -> None:
    kept = Path("/cache/ops/a.so")
    assert judge(Native(kept=kept)).seen == "compiled: /cache/ops/a.so"
    able = judge(Native(compiler="/usr/bin/g++"))
    assert (able.level, "tfdist build ops" in able.seen) == (Level.OK, True)
    unable = judge(Native())
    assert (unable.level, unable.cure) == (Level.NOTE, "apt-get install g++")
    assert "NumPy" in unable.why
    off = judge(Native(kept=kept, is_wanted=False))
    assert (off.level, off.cure) == (Level.NOTE, "unset TFDIST_NATIVE")
    assert judge(Native(compiler="/usr/bin/g++", error="no headers")).level is Level.NOTE
