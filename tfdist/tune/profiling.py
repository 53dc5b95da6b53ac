"""The profile of a script's model, measured in a process of its own; the line between two processes of this host."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfdist.cluster.ports import free_ports
from tfdist.errors import DeadlineError, TfdistError, UnsupportedError
from tfdist.launch.pool.environment import worker_environments
from tfdist.launch.pool.pool import WorkerPool
from tfdist.parallel.partition.link import Link
from tfdist.parallel.partition.profile import Profile, read
from tfdist.tune.probe import Request

__all__ = ["measured_link", "profiled"]

_FOREIGN = ("TF_CONFIG", "TFDIST_")  # the script is to find a process alone
_SIZES = (4 << 10, 4 << 20)
_LINK_SECONDS = 120.0
_SHOWN_LINES = 15


def profiled(
    script: Sequence[str],
    *,
    is_module: bool = False,
    divisors: Sequence[int] = (),
    threads: int | None = None,
    timeout_seconds: float = 600.0,
) -> Profile:
    """Return the profile of the model that a script gives to `fit` first; the script's process has ended then.

    Args:
        script: the script and its arguments.
        is_module: whether it is the name of a module.
        divisors: see `tfdist.tune.probe.Request`.
        threads: of a processor, that a device has; None for all. With one, seconds are those of the processor: what
            else the machine does is not in them.
        timeout_seconds: the longest time for it.
    Raises:
        UnsupportedError: the model has no graph of layers.
        TfdistError: the script fails, or ends without a call of `fit`; the message has the end of what it printed.
        DeadlineError: it has not come to `fit` in time, or measuring took too long.
    """
    with tempfile.TemporaryDirectory(prefix="tfdist-plan-", ignore_cleanup_errors=True) as folder:
        path, log = Path(folder, "profile.json"), Path(folder, "output")
        request = Request(
            path=str(path),
            parent=os.getpid(),
            is_module=is_module,
            divisors=tuple(divisors),
            counts_processor=threads == 1,
        )
        command = [sys.executable, "-m", "tfdist.tune.probe", json.dumps(asdict(request)), *script]
        with open(log, "wb") as output:
            code = _finished(command, _environment(threads), output.fileno(), timeout_seconds)
        refused = Path(f"{path}.error")
        if refused.exists():
            raise UnsupportedError(refused.read_text(encoding="utf-8"))
        text = log.read_text(encoding="utf-8", errors="replace").rstrip()
        end = "\n".join(["", *text.splitlines()[-_SHOWN_LINES:]])
        if code is None:
            raise DeadlineError(
                f"{script[0]} has not been measured after {timeout_seconds:g} s. Let it come to `fit` sooner, or give "
                f"more with --timeout-seconds. It printed:{end}"
            )
        if path.exists():
            return read(path)
        if code == 0:
            raise TfdistError(
                f"{script[0]} ended without a call of `fit` of a Keras model, which is what is measured. Let it train "
                f"with `fit`, or profile the model in Python: tfdist.parallel.plan(model, batch). It printed:{end}"
            )
        raise TfdistError(f"{script[0]} failed before it was measured, with code {code}. It printed:{end}")


def _environment(threads: int | None) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_FOREIGN)}
    if threads == 1:
        kept["CUDA_VISIBLE_DEVICES"] = ""  # the processor is the device
    if threads is not None:
        number = str(threads)
        kept |= {"TF_NUM_INTRAOP_THREADS": number, "TF_NUM_INTEROP_THREADS": number, "OMP_NUM_THREADS": number}
    return kept


def _finished(command: Sequence[str], environment: dict[str, str], output: int, seconds: float) -> int | None:
    """Run a command to its end; return its code, None if it was ended for taking too long."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
    )
    try:
        return process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def measured_link() -> Link:
    """Return the line between two processes of this host, as the collectives of `multi-worker` see it.

    Raises:
        TfdistError: it could not be measured.
    """

    def environments() -> list[dict[str, str]]:
        ports = free_ports(2)
        return worker_environments(os.environ, strategy="multi-worker", ports=ports, replicas_per_worker=1)

    with WorkerPool(environments) as pool:
        target = "tfdist.tune.profiling:all_reduce_seconds"
        replies = pool.call(target, {"sizes": list(_SIZES)}, timeout_seconds=_LINK_SECONDS)
    if any(reply.status != "returned" for reply in replies):
        told = next(reply for reply in replies if reply.status != "returned")
        raise TfdistError(f"the line between two processes was not measured: {told.message}. Give it: --link 10gbit")
    few, many = replies[0].value
    return Link.of_all_reduces((_SIZES[0], few), (_SIZES[1], many))


def all_reduce_seconds(sizes: Sequence[int]) -> list[float]:
    """Return the seconds of an all_reduce of so many bytes, for each; called by all workers of a job."""
    from tfdist import strategies
    from tfdist.collectives import buckets

    strategy: Any = strategies.from_environment()
    return [buckets.measured_seconds(strategy.workers.collective, size) for size in sizes]
