"""Lets TensorFlow not search its kernels for those of oneDNN, nor list XLA's, in every process forked from this one.

A process searches all kernels once for each operation and dtype, for two milliseconds each: a fifth of a training of
two steps. The answers are TensorFlow's own, which this process remembers. It must be imported before TensorFlow.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "native" / "remembered_kernels.cc"


def _loaded() -> ctypes.CDLL:
    """Return the library, which TensorFlow finds by its symbols when it is loaded later."""
    assert "tensorflow" not in sys.modules, "TensorFlow has found its own symbols already"
    compiler = os.environ.get("CXX", "g++")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "remembered_kernels.so")
        command = [compiler, "-std=c++17", "-O1", "-fPIC", "-shared", str(SOURCE), "-o", str(library), "-ldl"]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _remember(library: ctypes.CDLL) -> None:
    from tensorflow.python.framework import kernels

    names = {kernel.op.encode() for kernel in kernels.get_all_registered_kernels().kernel if kernel.op[:4] == "_Mkl"}
    library.remember_kernels((ctypes.c_char_p * (len(names) + 1))(*sorted(names), None))


_remember(_loaded())
