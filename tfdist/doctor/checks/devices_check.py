"""Check GPUs and NCCL: what the driver lists, what TensorFlow can use, and why they differ.

Example:
    >>> judge_gpus(Framework(), Driver(), {})[0].seen
    'none; TensorFlow computes on the CPU'
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from tfdist.doctor import child
from tfdist.doctor.finding import Finding, note, ok, problem, warning
from tfdist.doctor.framework import Framework

_QUERY = ("--query-gpu=name,driver_version", "--format=csv,noheader")
_NCCL_WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")


@dataclass(frozen=True, kw_only=True)
class Driver:
    """What ``nvidia-smi`` says.

    Attributes:
        present: whether the program is there.
        gpus: one line per GPU, with the version of the driver.
        error: why it could not say.
    """

    present: bool = False
    gpus: tuple[str, ...] = ()
    error: str = ""


def observe_driver(*, timeout_seconds: float) -> Driver:
    """Ask ``nvidia-smi`` for the GPUs, with a deadline."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Driver()
    outcome = child.run([program, *_QUERY], timeout_seconds=timeout_seconds)
    if outcome.code != 0:
        said = outcome.errors or outcome.output or f"exit code {outcome.code}"
        return Driver(present=True, error=said.splitlines()[-1])
    return Driver(present=True, gpus=tuple(line.strip() for line in outcome.output.splitlines() if line.strip()))


def judge_gpus(framework: Framework, driver: Driver, environ: Mapping[str, str]) -> list[Finding]:
    """Compare the GPUs that the driver lists with those that TensorFlow can use."""
    if framework.gpus:
        return [_usable(framework, driver)]
    if driver.error:
        why = "the driver is installed but does not answer, so no GPU can be used"
        return [warning("gpus", f"nvidia-smi fails: {driver.error}", why, "nvidia-smi")]
    if not driver.gpus:
        return [ok("gpus", "none; TensorFlow computes on the CPU")]
    seen = f"nvidia-smi lists {len(driver.gpus)} ({driver.gpus[0]}), TensorFlow can use none"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        why = f"CUDA_VISIBLE_DEVICES={visible!r} hides them"
        return [note("gpus", seen, why, "unset CUDA_VISIBLE_DEVICES")]
    if framework.error:
        return [problem("gpus", seen, "TensorFlow does not load", "see the finding `tensorflow`")]
    if not framework.build.get("is_cuda_build"):
        why = "this TensorFlow was built without CUDA"
        cure = "python -m pip uninstall -y tensorflow-cpu && python -m pip install 'tfdist[cuda]'"
        return [problem("gpus", seen, why, cure)]
    why = f"the libraries of CUDA {framework.build.get('cuda_version')} are missing or the driver is too old for them"
    return [problem("gpus", seen, why, "python -m pip install 'tfdist[cuda]'")]


def _usable(framework: Framework, driver: Driver) -> Finding:
    names = f": {'; '.join(driver.gpus)}" if driver.gpus else ""
    seen = f"TensorFlow can use {len(framework.gpus)}{names}"
    if len(driver.gpus) > len(framework.gpus):
        return note("gpus", seen, f"the driver lists {len(driver.gpus)}; CUDA_VISIBLE_DEVICES hides the others")
    return ok("gpus", seen)


def judge_nccl(framework: Framework, packages: Mapping[str, str]) -> list[Finding]:
    """Say whether NCCL is there; it matters from two GPUs on."""
    wheel = next((f"{name} {packages[name]}" for name in _NCCL_WHEELS if name in packages), "")
    if framework.nccl is not None:
        return [ok("nccl", nccl_version(framework.nccl) + (f" (wheel {wheel})" if wheel else ""))]
    seen = f"{wheel} does not load" if wheel else "not installed"
    if len(framework.gpus) > 1:
        why = "GPUs exchange gradients through it; without it they go through host memory"
        return [problem("nccl", seen, why, "python -m pip install 'tfdist[cuda]'")]
    return [note("nccl", seen, "needed from two GPUs on", "python -m pip install 'tfdist[cuda]'")]


def nccl_version(number: int) -> str:
    """Return NCCL's version number as it is written: 22703 -> ``2.27.3``, 2708 -> ``2.7.8``.

    Example:
        >>> nccl_version(22703)
        '2.27.3'
    """
    thousands = 10_000 if number >= 10_000 else 1_000  # the scheme changed with 2.9
    return f"{number // thousands}.{number % thousands // 100}.{number % 100}"
