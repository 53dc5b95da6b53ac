"""Checks of GPUs and NCCL, as the driver and TensorFlow see them, and of the dtype policy that suits the hardware."""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.doctor import child
from tfdist.doctor.finding import Finding, note, ok, problem, warning
from tfdist.doctor.framework import Framework

_QUERY = ("--query-gpu=name,driver_version", "--format=csv,noheader")
_CUDA_WHEELS = ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime-cu13", "nvidia-cuda-runtime")
_NCCL_WHEELS = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")
_WITH_DRIVER = "docker run --gpus all ...   # or install NVIDIA's driver on the host"


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The answer of ``nvidia-smi``: a line for each GPU, or the reason why there is none."""

    present: bool = False
    gpus: tuple[str, ...] = ()
    error: str = ""


def observe_driver(timeout_seconds: float) -> Driver:
    program = shutil.which("nvidia-smi")
    if program is None:
        return Driver()
    outcome = child.run([program, *_QUERY], timeout_seconds=timeout_seconds)
    if outcome.code != 0:
        said = outcome.errors or outcome.output or f"exit code {outcome.code}"
        return Driver(present=True, error=said.splitlines()[-1])
    return Driver(present=True, gpus=tuple(line.strip() for line in outcome.output.splitlines() if line.strip()))


def judge_gpus(
    framework: Framework, driver: Driver, environ: Mapping[str, str], packages: Mapping[str, str] | None = None
) -> list[Finding]:
    if framework.gpus:
        seen = f"TensorFlow can use {len(framework.gpus)}" + (f": {'; '.join(driver.gpus)}" if driver.gpus else "")
        if len(driver.gpus) > len(framework.gpus):
            why = f"the driver lists {len(driver.gpus)}; CUDA_VISIBLE_DEVICES hides the others"
            return [note("gpus", seen, why)]
        return [ok("gpus", seen)]
    if driver.error:
        why = "the driver is installed but does not answer, so no GPU can be used"
        return [warning("gpus", f"nvidia-smi fails: {driver.error}", why, "nvidia-smi")]
    if not driver.gpus and not driver.present and (wheels := _cuda_wheels(packages or {})):
        seen = f"none; CUDA is installed ({wheels}), and there is no driver (no nvidia-smi)"
        why = "the driver comes from the host; in a container its toolkit brings it"
        return [note("gpus", seen, why, _WITH_DRIVER)]
    if not driver.gpus:
        return [ok("gpus", "none; TensorFlow computes on the CPU")]
    seen = f"nvidia-smi lists {len(driver.gpus)} ({driver.gpus[0]}), TensorFlow can use none"
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible.strip() or visible.strip().startswith("-")):
        why = f"CUDA_VISIBLE_DEVICES={visible!r} hides them"
        return [note("gpus", seen, why, "unset CUDA_VISIBLE_DEVICES")]
    if framework.error:
        return [problem("gpus", seen, "TensorFlow does not load", "python -c 'import tensorflow'   # shows why")]
    if not framework.build.get("is_cuda_build"):
        why = "this TensorFlow was built without CUDA"
        cure = "python -m pip uninstall -y tensorflow-cpu && python -m pip install 'tfdist[cuda]'"
        return [problem("gpus", seen, why, cure)]
    why = f"the libraries of CUDA {framework.build.get('cuda_version')} are missing or the driver is too old for them"
    return [problem("gpus", seen, why, "python -m pip install 'tfdist[cuda]'")]


def _cuda_wheels(packages: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {packages[name]}" for name in _CUDA_WHEELS if name in packages)


def judge_nccl(framework: Framework, packages: Mapping[str, str]) -> list[Finding]:
    """Judge the NCCL library, which matters from two GPUs on."""
    wheel = next((f"{name} {packages[name]}" for name in _NCCL_WHEELS if name in packages), "")
    if framework.nccl is not None:
        number = framework.nccl  # 22703 is 2.27.3, but 2708 is 2.7.8: the scheme changed with 2.9
        thousands = 10_000 if number >= 10_000 else 1_000
        version = f"{number // thousands}.{number % thousands // 100}.{number % 100}"
        seen = version + (f" (wheel {wheel})" if wheel else "")
        return [ok("nccl", f"{seen}; {len(framework.gpus)} GPUs reduce by it" if len(framework.gpus) > 1 else seen)]
    seen = f"{wheel} does not load" if wheel else "not installed"
    if len(framework.gpus) > 1:
        why = "GPUs exchange gradients through it; without it they go through host memory"
        return [problem("nccl", seen, why, "python -m pip install 'tfdist[cuda]'")]
    return [note("nccl", seen, "needed from two GPUs on", "python -m pip install 'tfdist[cuda]'")]


_CPUINFO = Path("/proc/cpuinfo")

# the names that Linux uses on x86 and on ARM
_BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")


def observe_processor(path: Path = _CPUINFO) -> frozenset[str]:
    """Return the names of the processor's extensions; none if the system does not list them."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())


def recommended(capabilities: Sequence[tuple[int, int]], flags: Iterable[str]) -> str:
    """Return the Keras dtype policy that is fastest on this hardware without loss of quality.

    Tensor cores multiply float16 from compute capability 7.0 on, and bfloat16 from 8.0 on. bfloat16 is preferred
    because it needs no loss scale. Replicas wait for the slowest one, so the least capable GPU decides.

    Source: NVIDIA, "CUDA C++ Programming Guide", compute capabilities; P. Micikevicius et al., "Mixed Precision
    Training", 2018.
    """
    if not capabilities:
        return "mixed_bfloat16" if set(flags) & set(_BFLOAT16_FLAGS) else "float32"
    least = min(capabilities)
    if least >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if least >= (7, 0) else "float32"


def judge_precision(framework: Framework, flags: Iterable[str]) -> list[Finding]:
    if framework.gpus and not framework.capabilities:
        why = "TensorFlow does not say what its GPUs can do, so no policy is recommended"
        return [note("precision", "compute capability unknown", why)]
    found = sorted(set(flags) & set(_BFLOAT16_FLAGS))
    policy = recommended(framework.capabilities, found)
    if framework.capabilities:
        major, minor = min(framework.capabilities)
        what = f"GPUs of compute capability {major}.{minor}" + (" and more" if len(framework.capabilities) > 1 else "")
    else:
        what = f"the processor has {', '.join(found)}" if found else "the processor multiplies no 16-bit numbers"
    advice = {
        "mixed_bfloat16": "mixed_bfloat16 pays, without a loss scale",
        "mixed_float16": "mixed_float16 pays, with a loss scale, which Keras adds by itself",
        "float32": "float32; mixed precision saves memory at most",
    }
    return [ok("precision", f"{advice[policy]} ({what})")]
