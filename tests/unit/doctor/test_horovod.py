"""The doctor's report on Horovod."""

from dataclasses import replace

from tfdist.doctor.finding import Level
from tfdist.doctor.framework import Framework
from tfdist.doctor.software_check import judge_horovod
from tfdist.native.horovod_record import Installed, Record

WORKS = Framework(version="2.21.0", horovod={"gloo": True, "mpi": False, "nccl": False})
BROKEN = Framework(version="2.21.0", horovod_error="undefined symbol: _ZN")
RECORD = Record(tensorflow="2.21.0", python_tag="cp311", built_in=("gloo",), revision=1)


def test_it_is_an_option_that_one_command_installs() -> None:
    (finding,) = judge_horovod(BROKEN, None, tensorflow="2.21.0")
    assert (finding.level, finding.seen, finding.cure) == (Level.NOTE, "not installed", "tfdist build horovod")


def test_it_says_what_is_built_in_and_what_not() -> None:
    for record in (None, RECORD):
        (finding,) = judge_horovod(WORKS, Installed(version="0.28.1", record=record), tensorflow="2.21.0")
        assert finding.level is Level.OK
        assert finding.seen.startswith("0.28.1")
        assert "with gloo; without" in finding.seen
        assert finding.seen.endswith("mpi, nccl")


def test_built_for_another_tensorflow() -> None:
    (finding,) = judge_horovod(WORKS, Installed(version="0.28.1", record=RECORD), tensorflow="2.20.0")
    assert finding.level is Level.WARNING
    assert all(version in finding.seen for version in ("0.28.1", "TensorFlow 2.21.0", "2.20.0"))
    assert finding.cure == "tfdist build horovod"


def test_one_that_does_not_load() -> None:
    (finding,) = judge_horovod(BROKEN, Installed(version="0.28.1"), tensorflow="2.21.0")
    assert (finding.level, finding.cure) == (Level.WARNING, "tfdist build horovod --force")
    assert finding.seen.startswith("0.28.1")
    assert finding.seen.endswith(BROKEN.horovod_error)


def test_gpus_want_nccl() -> None:
    on_gpus = replace(WORKS, gpus=("GPU:0",))
    (finding,) = judge_horovod(on_gpus, Installed(version="0.28.1", record=RECORD), tensorflow="2.21.0")
    assert (finding.level, finding.cure) == (Level.NOTE, "tfdist build horovod --gpu")
    with_nccl = replace(on_gpus, horovod={"gloo": True, "mpi": False, "nccl": True})
    (finding,) = judge_horovod(with_nccl, Installed(version="0.28.1", record=RECORD), tensorflow="2.21.0")
    assert finding.level is Level.OK
    assert "gloo, nccl; without mpi" in finding.seen
