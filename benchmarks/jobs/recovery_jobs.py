"""One job of each side of the recovery benchmark, with a worker killed at scripted steps, and the job's notes."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.errors import TfdistError
from tfdist.monitor import fault_plan
from tfdist.monitor.fault_plan import FaultPlan
from tfdist.monitor.faults import Fault
from tfdist.variables import FAULTS_LOG

_DEADLINE_SECONDS = 240.0  # of a start, and once more for each kill
_END_SECONDS = 20.0
_FOREIGN = ("TF_CONFIG", "TFDIST_", "HOROVOD_", "OMPI_", "PMIX_", "PMI_", "SLURM_")
_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
_THREADS = {"TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}  # workers share the machine
# Horovod sees a machine for each worker, because it gives up a machine on which a worker died.
_HOSTS = "#!/bin/sh\necho localhost:1\necho 127.0.0.1:1\n"


@dataclass(frozen=True, kw_only=True)
class Kills:
    """The size of the model and the kills of a job; see `recovery_race.RecoveryBench`."""

    megabytes: float
    kills: int
    first: int
    every: int
    batch_size: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """The measurements of one job; sequences have one number for each kill."""

    noticed: Sequence[float]  # seconds from the kill until the agent, or the remaining worker, saw it
    # seconds from the kill until all remaining workers had ended a step with the restored state
    recovered: Sequence[float]
    repeated: Sequence[int]  # steps that were repeated
    workers: int  # the number of workers that continued
    step_seconds: float  # the time of a step before the first kill, including work for recovery, such as backups
    variables: int  # the number of variables in the state
    bytes: int  # the size of all these variables


def has_horovod() -> bool:
    return importlib.util.find_spec("horovod") is not None


def tfdist_job(asked: Kills, strategy: str, folder: Path) -> Job:
    """Run a job of two workers under `tfdist run --strategy ...`, which are killed one after the other."""
    plan = FaultPlan(
        faults=tuple(
            Fault(kind="kill", worker=(number + 1) % 2, step=asked.every if number else asked.first, restart=number)
            for number in range(asked.kills)
        )
    )
    events = folder / "events"
    command = [sys.executable, "-m", "tfdist", "run", "-n", "2", "--strategy", *strategy.split()]
    command += ["--max-restarts", str(asked.kills), "--event-file", str(events), "-m", "benchmarks.jobs.recovery_fit"]
    command += _arguments(asked, folder, steps=asked.first + asked.every * asked.kills)
    _run(command, folder, plan, deadline_seconds=_DEADLINE_SECONDS * (1 + asked.kills))
    return of_events(plan, _lines(folder / "faults"), _lines(events), _lines(folder / "notes"))


def horovod_job(asked: Kills, folder: Path) -> Job:
    """Run a job of two workers under `horovodrun`, in which one is killed."""
    plan = FaultPlan(faults=(Fault(kind="kill", worker=1, step=asked.first),))
    hosts = folder / "hosts.sh"
    hosts.write_text(_HOSTS, encoding="utf-8")
    hosts.chmod(0o755)
    command = [sys.executable, "-m", "horovod.runner.launch", "-np", "2", "--min-np", "1", "--max-np", "2"]
    command += ["--host-discovery-script", str(hosts), "--network-interfaces", "lo", "--gloo"]
    command += [sys.executable, "-m", "benchmarks.jobs.recovery_horovod"]
    command += _arguments(asked, folder, steps=asked.first + asked.every)
    _run(command, folder, plan, deadline_seconds=2 * _DEADLINE_SECONDS)
    return of_notes(_lines(folder / "faults"), _lines(folder / "notes"))


def of_events(
    plan: FaultPlan,
    happened: Sequence[dict[str, Any]],
    events: Sequence[dict[str, Any]],
    notes: Sequence[dict[str, Any]],
) -> Job:
    """Return the measurements of a job under `tfdist run`."""
    found = fault_plan.verdicts(plan, happened, events)
    noticed = [one.found_after for one in found if one.found_after is not None]
    recovered = [one.recovered_after for one in found if one.recovered_after is not None]
    if len(noticed) < len(found) or len(recovered) < len(found):
        raise TfdistError(f"a job did not recover from every kill.\n{fault_plan.table(found)}")
    stepping = [event for event in events if event.get("event") == "stepping"]
    return Job(
        noticed=noticed,
        recovered=recovered,
        repeated=[one.lost or 0 for one in found],
        workers=int(stepping[-1]["workers"]),
        step_seconds=_step_seconds(stepping[0], happened[0]),
        **_size(notes),
    )


def of_notes(happened: Sequence[dict[str, Any]], notes: Sequence[dict[str, Any]]) -> Job:
    """Return the measurements of a job under `horovodrun`."""
    if not happened:
        raise TfdistError("no worker was killed: Horovod's job did not get to that step.")
    kill = float(happened[0]["clock"])
    noticed = [line for line in notes if line["event"] == "noticed" and line["clock"] >= kill]
    before = [line for line in notes if line["event"] == "stepping" and line["clock"] < kill]
    after = [line for line in notes if line["event"] == "stepping" and line["clock"] >= kill]
    if not noticed or not before or not after:
        raise TfdistError("after the kill no worker of Horovod's job stepped again.")
    return Job(
        noticed=[noticed[0]["clock"] - kill],
        recovered=[max(line["clock"] for line in after) - kill],
        repeated=[happened[0]["step"] - min(line["step"] for line in after)],
        workers=after[-1]["workers"],
        step_seconds=_step_seconds(max(before, key=lambda line: line["clock"]), happened[0]),
        **_size(notes),
    )


def _step_seconds(stepping: Mapping[str, Any], kill: Mapping[str, Any]) -> float:
    return (float(kill["clock"]) - float(stepping["clock"])) / max(1, int(kill["step"]) - 1)


def _size(notes: Sequence[dict[str, Any]]) -> dict[str, int]:
    first = next((line for line in notes if line["event"] == "size"), None)
    if first is None:
        raise TfdistError("the script has not said how large its state is.")
    return {"variables": first["variables"], "bytes": first["bytes"]}


def _arguments(asked: Kills, folder: Path, *, steps: int) -> list[str]:
    return [str(folder), str(asked.megabytes), str(asked.batch_size), str(steps)]


def _lines(path: Path) -> list[dict[str, Any]]:
    return fault_plan.lines(path.read_text(encoding="utf-8")) if path.exists() else []


def _run(command: Sequence[str], folder: Path, plan: FaultPlan, *, deadline_seconds: float) -> None:
    """Run a job to its end, in a folder of its own; end it if it does not end by itself."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    environment = {**kept, **_QUIET, **_THREADS, **plan.to_environment(), "PYTHONPATH": path}
    environment[FAULTS_LOG.name] = str(folder / "faults")
    output = folder / "output"
    with (
        output.open("wb") as file,
        subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        ) as process,
    ):
        try:
            code: int | None = process.wait(deadline_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_END_SECONDS)
                process.kill()
    if code == 0:
        return
    said = [line for line in output.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    how = f"did not end within {deadline_seconds:g} s" if code is None else f"ended with code {code}"
    raise TfdistError(f"the job {how}: {said[-1].strip() if said else 'it said nothing'}")
