"""The profile of a script's model, measured in separate processes, and the link between two processes of this host."""

import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfdist.doctor import cgroup
from tfdist.doctor.machine_check import observe_memory, observe_processors
from tfdist.errors import DeadlineError, TfdistError, UnsupportedError
from tfdist.jobs.placement.worker_environment import WorkerSession
from tfdist.planner.layer_profile import Profile, beside_each_other, read, shown_processes
from tfdist.planner.planner_link import Link
from tfdist.processes.pool.worker_pool import failures
from tfdist.processes.shared_memory import observe_gpus
from tfdist.tune.layer_probe import Request
from tfdist.variables import PREFIX, STRATEGY

_FOREIGN = ("TF_CONFIG", PREFIX)  # the script is to find a process alone
PAIR_SECONDS = 600.0  # two processes import TensorFlow, which takes minutes on a machine that does other things
_LINK_BYTES = 16 << 20  # too many for caches, which would show a higher rate
_LINK_REPEATED_SECONDS = 2.0  # other programs' share of the memory's rate changes within a quarter of a second
_POLL_SECONDS = 0.05
_SHOWN_LINES = 15

#: Receives the name of what is measured next, for people.
Told = Callable[[str], None]


def untold(text: str) -> None:
    """Ignore the name of the next measurement."""


def beside(devices: int, *, threads: int | None, processors: int, gpus: int, free_bytes: int, each_bytes: int) -> int:
    """Return the number of processes, at most ``devices``, that this host can measure at once.

    Each process needs memory, and a GPU of its own if the host has any, else processors for its threads.
    """
    places = gpus or processors // (threads or 1)
    return max(min(devices, places, free_bytes // max(each_bytes, 1)), 1)


def measured(
    script: Sequence[str],
    *,
    devices: int,
    at_once: int | None = None,
    threads: int | None = None,
    timeout_seconds: float = 600.0,
    told: Told = untold,
    **options: Any,
) -> Profile:
    """Return the profile of a script's model in several processes of this host, and in one process alone."""
    given = {"threads": threads, "timeout_seconds": timeout_seconds, "told": told, **options}
    alone = profiled(script, **given)
    if at_once is None:
        limits = cgroup.observe()
        seen = observe_processors(limits)
        at_once = beside(
            devices,
            threads=threads,
            processors=max(int(seen.quota or seen.usable), 1),
            gpus=0 if threads == 1 else len(_gpus(os.environ, observe_gpus())),
            free_bytes=observe_memory(limits).free_bytes,
            each_bytes=resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10,  # of the largest: the one alone
        )
    if at_once == 1:
        return alone
    return profiled(script, alone=alone, processes=at_once, **given)


def profiled(
    script: Sequence[str],
    *,
    is_module: bool = False,
    divisors: Sequence[int] = (),
    threads: int | None = None,
    timeout_seconds: float = 600.0,
    processes: int = 1,
    alone: Profile | None = None,
    told: Told = untold,
) -> Profile:
    """Return the profile of the first model that a script fits; the script's processes have ended when this returns."""
    with tempfile.TemporaryDirectory(prefix="tfdist-plan-", ignore_cleanup_errors=True) as folder:
        paths = [Path(folder, f"profile-{number}.json") for number in range(processes)]
        commands = []
        for path in paths:
            request = Request(
                path=str(path),
                parent=os.getpid(),
                is_module=is_module,
                divisors=tuple(divisors),
                counts_processor=threads == 1,
                together=tuple(map(str, paths)),
            )
            commands.append([sys.executable, "-m", "tfdist.tune.layer_probe", json.dumps(asdict(request)), *script])
        gpus = _gpus(os.environ, observe_gpus())
        environments = [
            environment(os.environ, number, processes, threads=threads, gpus=gpus) for number in range(processes)
        ]
        told(f"running {script[0]} up to its first fit in {shown_processes(processes)}")
        codes = _finished(commands, environments, paths, timeout_seconds, told)
        for path, code in zip(paths, codes, strict=True):
            _require(path, code, script[0])
        if any(code is None for code in codes):
            late = paths[codes.index(None)]
            raise DeadlineError(
                f"{script[0]} has not been measured after {timeout_seconds:g} s: {_phase(late) or 'no fit has begun'}. "
                f"Let it come to `fit` sooner, or give more with --timeout-seconds. It printed:{_end(late)}",
                path=script[0],
            )
        found = [read(path) for path in paths]
    return found[0] if alone is None else beside_each_other(found, alone)


def _require(path: Path, code: int | None, script: str) -> None:
    refused = Path(f"{path}.error")
    if refused.exists():
        raise UnsupportedError(refused.read_text(encoding="utf-8"))
    if code is None or path.exists():
        return
    if code == 0:
        raise TfdistError(
            f"{script} ended without a call of `fit` of a Keras model, which is what is measured. Let it train "
            f"with `fit`, or profile the model in Python: tfdist.parallel.plan(model, batch). It printed:{_end(path)}",
            path=script,
        )
    raise TfdistError(f"{script} failed before it was measured, with code {code}. It printed:{_end(path)}", path=script)


def _log(path: Path) -> Path:
    return path.with_suffix(".output")


def _phase(path: Path) -> str:
    """Return what a process is measuring; empty if it has not begun."""
    with contextlib.suppress(OSError):
        return Path(f"{path}.phase").read_text(encoding="utf-8")
    return ""


def _end(path: Path) -> str:
    text = _log(path).read_text(encoding="utf-8", errors="replace").rstrip()
    return "\n".join(["", *text.splitlines()[-_SHOWN_LINES:]])


def environment(
    base: Mapping[str, str], number: int, processes: int, *, threads: int | None, gpus: Sequence[str] = ()
) -> dict[str, str]:
    """Return the environment of one of several processes that are measured at once."""
    kept = {name: value for name, value in base.items() if not name.startswith(_FOREIGN)}
    if processes > 1:
        kept[STRATEGY.name] = "multi-worker"
    if threads == 1:
        kept["CUDA_VISIBLE_DEVICES"] = ""  # the processor is the device
    elif gpus and processes > 1:
        kept["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
    if threads is not None:
        count = str(threads)
        kept |= {"TF_NUM_INTRAOP_THREADS": count, "TF_NUM_INTEROP_THREADS": count, "OMP_NUM_THREADS": count}
    return kept


def _gpus(base: Mapping[str, str], there: int) -> list[str]:
    """Return the GPUs that a process sees, as CUDA_VISIBLE_DEVICES names them."""
    given = base.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return [str(number) for number in range(there)]
    return [one.strip() for one in given.split(",") if one.strip() not in ("", "-1")] if there else []


def _finished(
    commands: Sequence[Sequence[str]],
    environments: Sequence[dict[str, str]],
    paths: Sequence[Path],
    seconds: float,
    told: Told,
) -> list[int | None]:
    """Run commands at once until all have ended, one has ended without a profile, or the deadline has passed."""
    deadline, phase = time.monotonic() + seconds, ""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(_running(command, variables, _log(path)))
            for command, variables, path in zip(commands, environments, paths, strict=True)
        ]
        while time.monotonic() < deadline:
            ended = [path for one, path in zip(processes, paths, strict=True) if one.poll() is not None]
            if (now := _phase(paths[0])) not in ("", phase):
                phase = now
                told(phase)
            if len(ended) == len(paths) or not all(path.exists() for path in ended):
                break
            time.sleep(_POLL_SECONDS)
        return [one.poll() for one in processes]


@contextlib.contextmanager
def _running(command: Sequence[str], variables: dict[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    with open(log, "wb") as output:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what the script has started, too
            process.wait()


def of_two_processes(
    target: str, arguments: Mapping[str, Any], *, what: str, hint: str = "", timeout_seconds: float = PAIR_SECONDS
) -> Any:
    """Return what a function measures on the first of two processes of this host, under `multi-worker`."""
    with WorkerSession("multi-worker", workers=2).pool as pool:
        replies = pool.call(target, arguments, timeout_seconds=timeout_seconds)
    if failed := failures(replies):
        if all(one.status == "silent" for one in failed):
            raise DeadlineError(
                f"{what} not measured after {timeout_seconds:g} s. Give more with --timeout-seconds, or try again when "
                f"the machine is less busy{hint and ', or ' + hint}."
            )
        raise TfdistError(f"{what} not measured: {failed[0].message.rstrip('.')}.{hint and ' Otherwise ' + hint + '.'}")
    return replies[0].value


def measured_link(*, timeout_seconds: float = PAIR_SECONDS, told: Told = untold) -> Link:
    """Measure the link between two processes of this host with the collectives of `multi-worker`."""
    told("measuring the link between two processes of this host")
    found = of_two_processes(
        "tfdist.tune.profiling:link_of_worker",
        {"many_bytes": _LINK_BYTES, "seconds": _LINK_REPEATED_SECONDS},
        what="the link between two processes was",
        hint="name a link, such as --link 10gbit",
        timeout_seconds=timeout_seconds,
    )
    return Link(**found, is_local=True)


def link_of_worker(many_bytes: int, seconds: float) -> dict[str, float]:
    """Measure the latency and the rate of the link between the workers of this job; all workers call it."""
    from tfdist import strategies
    from tfdist.collectives.link_measuring import measured_link

    strategy: Any = strategies.from_environment()
    found = measured_link(strategy.workers.collective, many_bytes, seconds=seconds)
    return {"latency_seconds": found.latency_seconds, "bytes_per_second": found.bytes_per_second}
