"""The original programs of the migration pages, run with their own libraries: `make moving`.

Each library has its own environment, because none of them works with the versions that tfdist needs. Two programs use
only libraries that tfdist installs anyway; tests/integration/test_docs_pages.py runs these.
"""

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peer_environment import python_with
from tests import readme

DOCS = Path(__file__).parents[1] / "docs"
_SECONDS = 600.0


@dataclass(frozen=True, kw_only=True)
class Before:
    """A program of a migration page: its requirements, the command that starts it, and its result."""

    requirements: Sequence[str]
    pinned: Sequence[str] = ()  # installed without dependencies, because their pins conflict
    launcher: Sequence[str] = ()
    #: part of the error that the page shows; empty if the program succeeds
    fails: str = ""
    #: files that it writes
    leaves: Sequence[str] = ()


PROGRAMS = {
    "accelerate": Before(
        requirements=("accelerate==1.15.0", "torch==2.14.1", "numpy==2.1.3"),
        launcher=("-m", "accelerate.commands.launch", "--cpu", "--num_processes", "2"),
        leaves=("backup", "model.pt"),
    ),
    "ray-train": Before(
        requirements=("ray[train]==2.60.0", "tensorflow==2.21.0", "keras==3.15.1"),
        fails="with an unsupported type (<class 'tensorflow.python.distribute.values.PerReplica'>)",
    ),
    "streaming": Before(requirements=("mosaicml-streaming==0.13.0", "torch==2.14.1"), leaves=("checkpoint.pt",)),
    # its own pins require a version of jaxlib that some indexes lack and that it does not need
    "tff": Before(
        pinned=(
            "tensorflow-federated==0.87.0",
            "tensorflow-privacy==0.9.0",
            "tensorflow-model-optimization==0.7.5",
            "tensorflow-probability==0.22.1",
            "dp-accounting==0.4.3",
            "google-vizier==0.1.11",
            "jax==0.4.13",
            "jaxlib==0.4.13",
        ),
        requirements=(
            "tensorflow-cpu==2.14.1",
            "numpy==1.25.2",
            "scipy==1.9.3",
            "pandas==1.5.3",
            "scikit-learn==1.2.2",
            "attrs==23.2.0",
            "cachetools==5.3.3",
            "cloudpickle",
            "decorator",
            "dm-tree==0.1.8",
            "farmhashpy==0.4.0",
            "googleapis-common-protos==1.61.0",
            "ml-dtypes==0.2.0",
            "opt-einsum",
            "portpicker",
            "semantic-version",
            "sqlalchemy==1.4.20",
            "tqdm",
            "typing-extensions==4.5.0",
        ),
    ),
}


def sides(page: str) -> tuple[str, str]:
    """Return the programs before and after from the diff of a migration page, which has one diff."""
    text = (DOCS / f"moving-from-{page}.md").read_text(encoding="utf-8")
    (diff,) = readme.fenced(text, "diff")
    lines = diff.splitlines()
    if wrong := [line for line in lines if line[:1] not in ("", " ", "+", "-")]:
        raise ValueError(f"{page}: {wrong[0]!r} is no line of a diff; begin it with ' ', '+' or '-'")
    before, after = ("\n".join(line[1:] for line in lines if line[:1] != other) + "\n" for other in "+-")
    return before, after


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if every program ends as its page says, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.programs_before", description=__doc__)
    parser.add_argument("--page", action="append", choices=PROGRAMS, help="all by default; they take 9 GB")
    parser.add_argument("--folder", type=Path, default=Path("runs/moving"), help="folder for environments and outputs")
    given = parser.parse_args(arguments)
    problems = {page: _problem(page, PROGRAMS[page], given.folder.resolve() / page) for page in given.page or PROGRAMS}
    for page, problem in problems.items():
        print(f"{page}: {problem or 'ends as the page says'}")
    return 1 if any(problems.values()) else 0


def _problem(page: str, program: Before, folder: Path) -> str:
    """Run a program in its environment; return its difference from the page, or an empty text."""
    print(f"{page}: {program.requirements[0]} in {folder}", flush=True)
    python = python_with(folder / "environment", *program.requirements, alone=program.pinned)
    run = folder / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir()
    (run / "train.py").write_text(sides(page)[0], encoding="utf-8")
    output = folder / "output.txt"
    with output.open("wb") as file:
        command = [python, *program.launcher, "train.py"]
        process = subprocess.Popen(command, cwd=run, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            status = process.wait(_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):  # TensorFlow Federated leaves its executor behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if program.fails:
        told = program.fails in output.read_text(encoding="utf-8", errors="replace")
        return "" if status and told else f"it should fail with {program.fails!r}: {output}"
    if status:
        return f"it ends with {status}: {output}"
    missing = [name for name in program.leaves if not (run / name).exists()]
    return f"it leaves no {missing[0]}: {output}" if missing else ""


if __name__ == "__main__":
    sys.exit(main())
