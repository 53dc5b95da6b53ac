"""The number of files of tfdist between a call of `tfdist.data.read` and the tensors of a batch."""

import inspect
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tfdist
from tfdist.data.reading.reader import read
from tfdist.data.writing.dataset_writer import write

pytestmark = pytest.mark.quick

ROOT = Path(tfdist.__file__).parent
LONGEST = 16
GROUND = {"validation.py", "errors.py"}  # checks of arguments: every function has them, and none leads further


def test_a_batch_is_read_through_few_files(tmp_path: Path) -> None:
    """Counts the thread that asks for batches; `sys.setprofile` does not see the threads of TensorFlow."""
    write({"x": np.zeros((20, 4), np.float32), "label": np.arange(20)}, tmp_path)
    passed: dict[str, set[str]] = {}

    def called(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED  # not a class or a module that is being made
        if event == "call" and is_function and path.is_relative_to(ROOT):
            passed.setdefault(str(path.relative_to(ROOT)), set()).add(frame.f_code.co_name)

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        batches = list(read(tmp_path, global_batch_size=4, ops=False))
    finally:
        sys.setprofile(before)
    assert len(batches) == 5
    assert {"data/reading/reader.py", "data/order/batch_positions.py", "storage/local_storage.py"} <= passed.keys()
    found = sorted(passed.keys() - GROUND)
    assert len(found) <= LONGEST, f"{len(found)} files: {', '.join(found)}"
