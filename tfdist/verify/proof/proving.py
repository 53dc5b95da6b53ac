"""The comparison of a script's first steps under a strategy and on one device, in separate jobs.

Loads no TensorFlow. Nothing of the runs is left when a function here returns or raises.
"""

import enum
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tfdist.jobs.process.job_command import run_to_end
from tfdist.variables import MAX_STALENESS, PREFIX
from tfdist.verify.proof.differences import ROUNDING, Difference, compared, may_round, other_batches
from tfdist.verify.proof.script_run import NOT_COMPARED, Request
from tfdist.verify.proof.state_files import ONE_DEVICE, REVERSED, STRATEGY, Run, StateFiles, Step

_GRACE_SECONDS = 5.0
_SHOWN_LINES = 15
_FOREIGN = ("TF_CONFIG", PREFIX)  # on one device the script is to find a process alone


class Outcome(enum.Enum):
    """The result of a comparison; the value is the exit code of the command."""

    SAME = 0
    DIFFERS = 1
    NOT_COMPARED = 3
    FAILED = 4


@dataclass(frozen=True, kw_only=True)
class Job:
    """A script, and the strategy under which it is compared.

    Attributes:
        run: the options of `tfdist run` that start it.
        script: the script (or, with ``is_module``, a module) and its own arguments.
        variables: the environment variables for the run under the strategy.
        steps: the number of batches to compare.
        timeout_seconds: the longest time for each of the two runs.
    """

    name: str
    run: tuple[str, ...]
    script: tuple[str, ...]
    is_module: bool = False
    variables: Mapping[str, str]
    steps: int = 5
    tolerance: float = 1e-4
    timeout_seconds: float = 600.0


@dataclass(frozen=True, kw_only=True)
class Proof:
    """The outcome of a comparison.

    Attributes:
        text: the reason why it was not compared, or the failure of the script.
        differences: the values that differ, the first cause first.
        largest: the largest difference of the other values.
        compared: the number of compared values of each kind.
        left_out: the parts of the script that were not compared, or done in another way.
        hints: possible explanations of differences.
    """

    strategy: str
    outcome: Outcome
    tolerance: float
    text: str = ""
    differences: tuple[Difference, ...] = ()
    largest: float = 0.0
    steps: int = 0
    replicas: int = 1
    workers: int = 1
    compared: Mapping[str, int] | None = None
    left_out: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it for programs; an infinite difference is None."""
        found = asdict(self) | {"outcome": self.outcome.name.lower()}
        for one in found["differences"]:
            one |= {name: None for name in ("size", "largest") if one[name] == float("inf")}
        return found


def prove(job: Job, *, on_run: Callable[[str], None] = lambda told: None) -> Proof:
    with tempfile.TemporaryDirectory(prefix="tfdist-verify-", ignore_cleanup_errors=True) as folder:
        on_run(f"{job.script[0]} under {job.name}")
        variables = {**os.environ, **job.variables}
        is_bounded = "parameter-server" in job.run and not MAX_STALENESS.text(variables)
        if is_bounded:
            variables[MAX_STALENESS.name] = "0"
        if stopped := _run(job, folder, STRATEGY, job.run, variables):
            return stopped
        runs = [files.run() for files in StateFiles.of_all(folder, STRATEGY)]
        theirs = runs[0]
        assert theirs is not None
        on_run(f"{job.script[0]} on one device")
        alone = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
        if stopped := _run(job, folder, ONE_DEVICE, ("-n", "1"), alone, replicas=theirs.replicas):
            return stopped
        on_run("comparing")
        found = _compared(job, folder, theirs)
        if may_round(found.differences) and theirs.loop == "fit":
            on_run(f"{job.script[0]} on one device, the examples of each batch in another order")
            if _run(job, folder, REVERSED, ("-n", "1"), alone, replicas=theirs.replicas) is None:
                found = _compared(job, folder, theirs, turned=StateFiles.of_all(folder, REVERSED)[0].steps())
    if is_bounded:
        told = (
            "asynchronous updates, which are another algorithm: the workers share each batch here "
            f"({MAX_STALENESS.name}=0)"
        )
        return replace(found, left_out=(*found.left_out, told))
    return found


def _run(
    job: Job, folder: str, kind: str, options: Sequence[str], environment: Mapping[str, str], *, replicas: int = 1
) -> Proof | None:
    """Run the script once; None if its steps were recorded, else the outcome of the comparison."""
    request = Request(folder=folder, kind=kind, steps=job.steps, is_module=job.is_module, replicas=replicas)
    entry = ["-m", "tfdist.verify.proof.script_run", request.to_json(), *job.script]
    log = Path(folder, f"{kind}.log")
    with open(log, "wb") as output:
        command = [sys.executable, "-m", "tfdist", "run", "--grace-seconds", str(_GRACE_SECONDS), *options, *entry]
        code = run_to_end(
            command, environment, output.fileno(), seconds=job.timeout_seconds, grace_seconds=4 * _GRACE_SECONDS
        )
    where = f"under {job.name}" if kind == STRATEGY else "on one device"

    def ended(outcome: Outcome, text: str) -> Proof:
        return Proof(strategy=job.name, tolerance=job.tolerance, outcome=outcome, text=text)

    refused = Path(folder, NOT_COMPARED)
    if refused.exists():
        return ended(Outcome.NOT_COMPARED, refused.read_text(encoding="utf-8"))
    runs = [files.run() for files in StateFiles.of_all(folder, kind)]
    if code == 0 and runs and all(run is not None and run.is_done for run in runs):
        return None
    if code == 0:
        text = (
            f"{job.script[0]} ended {where} without a step of training that is seen. Let it train a Keras model with "
            "fit, train_on_batch or an optimizer of Keras."
        )
        return ended(Outcome.NOT_COMPARED, text)
    how = f"was not done {where} after {job.timeout_seconds:g} s" if code is None else f"failed {where}, code {code}"
    shown = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-_SHOWN_LINES:]
    return ended(Outcome.FAILED, "\n".join([f"{job.script[0]} {how}:", *shown]))


def _compared(job: Job, folder: str, theirs: Run, *, turned: Sequence[Step] = ()) -> Proof:
    workers = [files.steps() for files in StateFiles.of_all(folder, STRATEGY)]
    files = StateFiles.of_all(folder, ONE_DEVICE)[0]
    reference, alone = files.steps(), files.run()
    assert alone is not None
    made = sum(theirs.batches)
    if len(alone.epochs) < len(theirs.epochs):
        made = sum(alone.batches)
        theirs.leave_out(f"the steps after step {made}: on one device the script made no more")
    differences, largest = compared(workers, reference, alone, tolerance=job.tolerance, turned=turned)
    if turned:
        every, _ = compared(workers, reference, alone, tolerance=job.tolerance)
        rounding = {one.name for one in every if one.kind in ROUNDING} - {one.name for one in differences}
        if rounding:
            why = "gradients are rounding, which another order of the examples changes as much"
            theirs.leave_out(f"{', '.join(sorted(rounding))}: their {why}")
    kinds: dict[str, set[str]] = {}
    for name in {name for step in reference for name in step.values}:
        kinds.setdefault(name.partition("/")[0], set()).add(name)
    outcome = Outcome.DIFFERS if differences else Outcome.SAME
    text = ""
    random = sorted({*theirs.random, *alone.random})
    if theirs.loop == "loop":
        runs = [files.run() for files in StateFiles.of_all(folder, STRATEGY)]
        other = other_batches([run.seen for run in runs if run is not None], alone.seen)
        if other is None:
            theirs.leave_out("the batches: the calls of the script's own loop are not given them as tensors")
        elif differences and other:
            outcome = Outcome.NOT_COMPARED
            text = (
                f"the loop of the script was given other examples at step {other} than on one device. Seed its "
                "shuffles and random numbers, and take batches from strategy.experimental_distribute_dataset."
            )
    if differences and random and not any(one.kind == "batch" for one in differences):
        outcome = Outcome.NOT_COMPARED
        text = (
            f"layers draw random numbers of their own: {', '.join(random)}. What differs may come of that. Let them "
            "draw none, and compare again."
        )
    hints = [sentence for sentence in dict.fromkeys(theirs.said) if differences]
    if differences and theirs.normalising and theirs.loop == "loop":  # a fit says so itself
        hints.append(
            f"{', '.join(theirs.normalising)}: BatchNormalization takes the statistics of each replica's part of a "
            "batch. With synchronized=True it takes those of the whole batch, as one device does."
        )
    if differences and theirs.is_short:
        hints.append("Layers compute in 16 bits, which round differently in parts of a batch. Give --tolerance 1e-2.")
    return Proof(
        strategy=job.name,
        outcome=outcome,
        tolerance=job.tolerance,
        text=text,
        differences=tuple(differences),
        largest=largest,
        steps=made,
        replicas=theirs.replicas,
        workers=theirs.workers,
        compared={kind: len(names) for kind, names in sorted(kinds.items())},
        left_out=tuple(dict.fromkeys([*theirs.left_out, *alone.left_out])),
        hints=tuple(hints),
    )


def to_json(proofs: Sequence[Proof]) -> str:
    return json.dumps({"version": 1, "proofs": [one.to_dict() for one in proofs]}, indent=2)
