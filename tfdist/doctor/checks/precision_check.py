"""Recommend a mixed precision policy, by the least capable GPU or by the processor.

Example:
    >>> recommended([(8, 0), (9, 0)], [])
    'mixed_bfloat16'
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from tfdist.doctor.finding import Finding, note, ok
from tfdist.doctor.framework import Framework

_CPUINFO = Path("/proc/cpuinfo")

# as the kernels of x86 and of ARM call them
_BFLOAT16_FLAGS = ("amx_bf16", "avx512_bf16", "bf16")


def observe_processor(path: Path = _CPUINFO) -> frozenset[str]:
    """Return the names of the processor's extensions; none where the system does not say."""
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return frozenset()
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return frozenset(flags.partition(":")[2].split())


def recommended(capabilities: Sequence[tuple[int, int]], flags: Iterable[str]) -> str:
    """Return the Keras dtype policy by which training becomes faster without losing what it learns.

    Tensor cores multiply float16 from compute capability 7.0 on and bfloat16 from 8.0 on. bfloat16 has float32's range
    and needs no loss scale, so it is preferred where there is a choice. A replica waits for the slowest, so the least
    capable GPU decides.

    Source: NVIDIA, "CUDA C++ Programming Guide", compute capabilities; P. Micikevicius et al., "Mixed Precision
    Training", 2018.
    """
    if not capabilities:
        return "mixed_bfloat16" if set(flags) & set(_BFLOAT16_FLAGS) else "float32"
    least = min(capabilities)
    if least >= (8, 0):
        return "mixed_bfloat16"
    return "mixed_float16" if least >= (7, 0) else "float32"


def judge(framework: Framework, flags: Iterable[str]) -> list[Finding]:
    """Say which policy to choose, and why."""
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
