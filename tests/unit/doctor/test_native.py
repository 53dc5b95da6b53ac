"""The doctor's report on the ops that tfdist compiles for itself."""

import os
from pathlib import Path

from tfdist.doctor.finding import Level
from tfdist.doctor.native_check import Native, judge_native, observe_native
from tfdist.native import build_target, library


def test_it_looks_and_compiles_nothing(tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    seen = observe_native(environ)
    assert (seen.is_wanted, seen.kept, seen.missing, seen.error) == (True, (), ("records", "codecs", "stamps"), "")
    assert not (tmp_path / "cache").exists()
    place = library.place(library.RECORDS, build_target.observe(), environ)
    place.parent.mkdir(parents=True)
    place.write_bytes(library.sealed(b"a library"))
    off = Native(is_wanted=False, kept=(place,), missing=("codecs", "stamps"), compiler=seen.compiler)
    assert observe_native({**environ, "TFDIST_NATIVE": "0"}) == off
    assert "TFDIST_NATIVE is 'x'" in observe_native({**environ, "TFDIST_NATIVE": "x"}).error
    assert observe_native({"PATH": str(tmp_path)}).compiler is None


def test_it_is_judged() -> None:
    kept = (Path("/cache/ops/a.so"), Path("/cache/ops/b.so"))
    assert judge_native(Native(kept=kept)).seen == "compiled: /cache/ops/a.so, /cache/ops/b.so"
    able = judge_native(Native(kept=kept[:1], missing=("codecs",), compiler="/usr/bin/g++"))
    assert (able.level, "codecs not compiled" in able.seen, "tfdist build ops" in able.seen) == (Level.OK, True, True)
    unable = judge_native(Native(missing=("records", "codecs")))
    assert (unable.level, unable.cure) == (Level.NOTE, "apt-get install g++")
    assert "records and codecs" in unable.seen
    assert "NumPy" in unable.why
    off = judge_native(Native(kept=kept, is_wanted=False))
    assert (off.level, off.cure) == (Level.NOTE, "unset TFDIST_NATIVE")
    assert judge_native(Native(compiler="/usr/bin/g++", error="no headers")).level is Level.NOTE
