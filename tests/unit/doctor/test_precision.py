"""Advice on the dtype policy, by compute capability and by processor."""

from pathlib import Path

import pytest

from tfdist.doctor import gpu_check
from tfdist.doctor.finding import Level
from tfdist.doctor.framework import Framework


@pytest.mark.parametrize(
    ("capabilities", "flags", "policy"),
    [
        ([], [], "float32"),
        ([], ["avx512f", "avx2"], "float32"),
        ([], ["avx512_bf16"], "mixed_bfloat16"),
        ([], ["amx_tile", "amx_bf16"], "mixed_bfloat16"),
        ([], ["bf16"], "mixed_bfloat16"),
        ([(6, 1)], [], "float32"),
        ([(6, 1)], ["amx_bf16"], "float32"),  # the GPU computes, not the processor
        ([(7, 0)], [], "mixed_float16"),
        ([(7, 5)], ["amx_bf16"], "mixed_float16"),
        ([(8, 0)], [], "mixed_bfloat16"),
        ([(8, 9), (9, 0)], [], "mixed_bfloat16"),
        ([(10, 0), (12, 0)], [], "mixed_bfloat16"),
        ([(8, 0), (7, 5)], [], "mixed_float16"),
        ([(8, 0), (6, 0)], [], "float32"),
    ],
)
def test_the_least_capable_decides(capabilities: list[tuple[int, int]], flags: list[str], policy: str) -> None:
    assert gpu_check.recommended(capabilities, flags) == policy
    gpus = tuple(f"GPU:{index}" for index in range(len(capabilities)))
    (finding,) = gpu_check.judge_precision(Framework(gpus=gpus, capabilities=tuple(capabilities)), flags)
    assert (finding.level, finding.check) == (Level.OK, "precision")
    assert finding.seen.startswith(policy)


def test_gpus_that_do_not_say_what_they_are_get_no_advice() -> None:
    (finding,) = gpu_check.judge_precision(Framework(gpus=("GPU:0",)), ["amx_bf16"])
    assert finding.level is Level.NOTE
    assert "unknown" in finding.seen


def test_the_processor_is_read(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: x\nflags\t\t: fpu amx_bf16\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert gpu_check.observe_processor(cpuinfo) == {"fpu", "amx_bf16"}
    cpuinfo.write_text("processor\t: 0\nFeatures\t: fp asimd bf16\n")
    assert "bf16" in gpu_check.observe_processor(cpuinfo)
    assert not gpu_check.observe_processor(tmp_path / "none")
