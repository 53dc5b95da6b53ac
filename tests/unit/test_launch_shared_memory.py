"""/dev/shm: who needs how much of it, and the flag that gives it."""

from pathlib import Path

import pytest

from tfdist.processes import shared_memory
from tfdist.processes.shared_memory import complaint

MIB = 1 << 20


@pytest.mark.parametrize(
    ("total", "gpus", "holds_states", "words"),
    [
        (64 * MIB, 0, False, ()),
        (64 * MIB, 1, False, ()),
        (64 * MIB, 2, False, ("has 64 MiB", "between 2 GPUs")),
        (512 * MIB, 8, False, ("has 512 MiB", "between 8 GPUs")),
        (1024 * MIB, 8, True, ()),
        (64 * MIB, 0, True, ("held there for restarts",)),
        (65 * MIB, 0, True, ()),
        (64 * MIB, 2, True, ("between 2 GPUs", "held there for restarts")),
        (None, 2, False, ("there is no /dev/shm",)),
        (None, 0, False, ()),
    ],
)
def test_a_job_is_told_what_it_lacks(total: int | None, gpus: int, holds_states: bool, words: tuple[str, ...]) -> None:
    said = complaint(total, gpus=gpus, holds_states=holds_states)
    assert (said is None) == (not words)
    for word in words:
        assert word in (said or "")
    assert said is None or "--shm-size=1g" in said


def test_the_flag_gives_what_is_needed() -> None:
    assert complaint(shared_memory.NCCL_BYTES, gpus=16, holds_states=True) is None


def test_gpus_are_counted_by_their_devices(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia11", "nvidiactl", "nvidia-modeset", "null"):
        (tmp_path / name).touch()
    assert shared_memory.observe_gpus(tmp_path) == 2
    assert shared_memory.observe(tmp_path / "none") is None
    assert (shared_memory.observe(tmp_path) or 0) > 0
