"""The doctor's report on the collective backend that workers take."""

import os
from pathlib import Path

from tfdist.doctor.finding import Level
from tfdist.doctor.native_check import Collectives, judge_collectives, observe_collectives
from tfdist.native import build_target, library


def test_it_looks_and_compiles_nothing(tmp_path: Path) -> None:
    environ = {"TFDIST_CACHE_DIR": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    assert observe_collectives(environ) == Collectives()
    assert not (tmp_path / "cache").exists()
    place = library.place(library.COLLECTIVES, build_target.observe(), environ)
    place.parent.mkdir(parents=True)
    place.write_bytes(library.sealed(b"a library"))
    kept = observe_collectives({**environ, "PATH": str(tmp_path)})
    assert (kept.kept, kept.missing) == (place, "")
    assert (
        "compiler" in observe_collectives({"TFDIST_CACHE_DIR": str(tmp_path / "none"), "PATH": str(tmp_path)}).missing
    )


def test_it_is_judged() -> None:
    assert "native collectives, compiled: /c/a.so" in judge_collectives(Collectives(kept=Path("/c/a.so")), ()).seen
    assert "TensorFlow's" in judge_collectives(Collectives(kept=Path("/c/a.so")), ("GPU 0",)).seen
    unable = judge_collectives(Collectives(missing="no compiler"), ())
    assert (unable.level, unable.cure) == (Level.NOTE, "apt-get install g++")
    assert "no compiler" in unable.why
    assert "horovod" in judge_collectives(Collectives(asked="horovod"), ()).seen
    assert judge_collectives(Collectives(asked="nccl"), ()).level is Level.NOTE
