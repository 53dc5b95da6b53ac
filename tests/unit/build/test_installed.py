"""The installed Horovod, and whether it fits the options, by its record and by the output of a child process."""

import json
import os
import signal
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tfdist.native import horovod_record
from tfdist.native.build_target import Target
from tfdist.native.horovod_record import Installed, read_record
from tfdist_horovod import installed, recipe, wheels
from tfdist_horovod.installed import misfit, record_of
from tfdist_horovod.recipe import Options, Toolkit

TARGET = Target.example()
RECORD = record_of(TARGET, Options())
MPI = Options(mpi=Toolkit(version="openmpi5"))
GPU = Options(cuda=Toolkit(version="13.0"))
OURS = Installed(version=recipe.VERSION, record=RECORD)


def test_a_record_survives_its_file() -> None:
    for options in (Options(), GPU, MPI):
        record = record_of(TARGET, options)
        assert read_record(record.to_json()) == record


@pytest.mark.parametrize("text", [None, "", "{", "[]", "3", "{}", '{"tensorflow": "2.21.0"}'])
def test_what_is_no_record(text: str | None) -> None:
    assert read_record(text) is None


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (replace(OURS, record=None), "not known"),
        (replace(OURS, is_whole=False), "its library is missing"),
        (replace(OURS, version="0.27.0"), "its version is 0.27.0"),
        (replace(OURS, record=replace(RECORD, tensorflow="2.20.0")), "built for TensorFlow 2.20.0"),
        (replace(OURS, record=replace(RECORD, python_tag="cp312")), "built for Python cp312"),
        (replace(OURS, record=replace(RECORD, revision=recipe.REVISION + 1)), "another revision"),
        (replace(OURS, record=replace(RECORD, built_in=("mpi",))), "built without gloo"),
    ],
)
def test_what_does_not_do(found: Installed, why: str) -> None:
    assert why in misfit(found, TARGET, Options())


def test_what_does() -> None:
    assert misfit(OURS, TARGET, Options()) == ""
    more = replace(OURS, record=replace(RECORD, built_in=("gloo", "mpi", "nccl")))
    assert misfit(more, TARGET, Options()) == ""
    assert misfit(OURS, TARGET, GPU).endswith("without nccl")
    with_cuda = replace(OURS, record=record_of(TARGET, GPU))
    assert misfit(with_cuda, TARGET, GPU) == ""
    assert misfit(with_cuda, TARGET, Options(cuda=Toolkit(version="12.4"))).endswith("with CUDA 13.0")
    with_mpi = replace(OURS, record=record_of(TARGET, MPI))
    assert misfit(with_mpi, TARGET, MPI) == ""
    assert misfit(with_mpi, TARGET, Options(mpi=Toolkit(version="mpich4.1"))).endswith("with openmpi5")


@pytest.mark.parametrize(
    ("lines", "code", "built_in", "error"),
    [
        (["noise", 'tfdist-build:["gloo", "mpi"]'], 0, ("gloo", "mpi"), ""),
        (["Traceback", "ImportError: no symbol", ""], 1, (), "ImportError: no symbol"),
        (["noise"], -11, (), "it ended by SIGSEGV"),
        ([], 3, (), "it ended with code 3 without a word"),
    ],
)
def test_what_the_child_says(lines: list[str], code: int, built_in: tuple[str, ...], error: str) -> None:
    proof = installed.interpret(lines, code)
    assert (proof.built_in, proof.error) == (built_in, error)


def test_the_child_believes_to_be_alone() -> None:
    inherited = {
        "HOROVOD_RANK": "1",
        "OMPI_COMM_WORLD_RANK": "1",
        "TF_CONFIG": "{}",
        "SLURM_PROCID": "1",
        "PATH": "/bin",
    }
    for on_gpus in (False, True):
        made = installed.proof_environment(inherited, on_gpus=on_gpus)
        assert not set(made) & (inherited.keys() - {"PATH"})
        assert made["PATH"] == "/bin"


def test_the_child_opens_gpus_only_where_they_are_built_in() -> None:
    inherited = {"CUDA_VISIBLE_DEVICES": "1"}
    assert installed.proof_environment(inherited, on_gpus=False)["CUDA_VISIBLE_DEVICES"] == ""
    on_gpus = installed.proof_environment(inherited, on_gpus=True)
    assert (on_gpus["CUDA_VISIBLE_DEVICES"], on_gpus["TF_FORCE_GPU_ALLOW_GROWTH"]) == ("1", "true")


def test_a_child_that_does_not_answer_is_left_with_what_holds_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = f"setsid sleep 60 & echo $! > {tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; wait"
    monkeypatch.setattr(installed, "proof_command", lambda: ["sh", "-c", program])
    monkeypatch.setattr(installed, "_END_SECONDS", 0.1)
    begun = time.monotonic()
    proof = installed.prove(os.environ, on_gpus=False, timeout_seconds=2.0)
    seconds = time.monotonic() - begun
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    assert proof.error
    assert seconds < 50


def test_a_file_is_added_to_a_wheel_and_to_its_list(tmp_path: Path) -> None:
    listing = "horovod/a.py,sha256=x,1\nhorovod-0.28.1.dist-info/RECORD,,\n"
    with zipfile.ZipFile(tmp_path / "old.whl", "w") as archive:
        archive.writestr("horovod/a.py", "a")
        archive.writestr("horovod-0.28.1.dist-info/RECORD", listing)
    new = tmp_path / "new.whl"
    wheels.add_to_metadata(tmp_path / "old.whl", horovod_record.RECORD, RECORD.to_json(), destination=new)
    with zipfile.ZipFile(new) as archive:
        assert archive.read("horovod/a.py") == b"a"
        added = f"horovod-0.28.1.dist-info/{horovod_record.RECORD}"
        assert json.loads(archive.read(added))["tensorflow"] == "2.21.0"
        lines = archive.read("horovod-0.28.1.dist-info/RECORD").decode().splitlines()
    assert lines[:2] == listing.splitlines()
    assert lines[2].startswith(f"{added},sha256=")
    assert lines[2].endswith(f",{len(RECORD.to_json())}")
