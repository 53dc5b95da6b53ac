"""The cause of a failure, found in pieces of real logs."""

import pytest

from tfdist_horovod.diagnose import find_cause

COMPILER = """\
[ 12%] Building CXX object horovod/tensorflow/CMakeFiles/tensorflow.dir/xla_mpi_ops.cc.o
In file included from /w/sources/horovod-0.28.1/horovod/common/half.h:20:
/w/half.h:76:11: warning: dereferencing type-punned pointer will break strict-aliasing rules [-Wstrict-aliasing]
/w/horovod-0.28.1/horovod/tensorflow/xla_mpi_ops.cc:27:10: fatal error: tensorflow/x.h: No such file or directory
   27 | #include "tensorflow/x.h"
      |          ^~~~~~~~~~~~~~~~
compilation terminated.
make[2]: *** [horovod/tensorflow/CMakeFiles/tensorflow.dir/build.make:76: xla_mpi_ops.cc.o] Error 1
make[1]: *** [CMakeFiles/Makefile2:170: horovod/tensorflow/CMakeFiles/tensorflow.dir/all] Error 2
make: *** [Makefile:136: all] Error 2
Traceback (most recent call last):
  File "/w/sources/horovod-0.28.1/setup.py", line 213, in <module>
    setup(name='horovod',
subprocess.CalledProcessError: Command '['cmake', '--build', '.']' returned non-zero exit status 2.
"""

BROKEN_COMPILER = """\
-- Check for working CXX compiler: /w/bin/c++ - broken
CMake Error at tools/cmake/data/share/cmake-3.31/Modules/CMakeTestCXXCompiler.cmake:73 (message):
  The C++ compiler

    "/w/bin/c++"

  is not able to compile a simple test program.

  It fails with the following output:
"""

NO_NETWORK = """\
WARNING: Retrying (Retry(total=0, connect=None, read=None, redirect=None, status=None)) after connection broken by \
'NewConnectionError('<pip._vendor.urllib3.connection.HTTPSConnection object at 0x7f>: Failed to establish a new \
connection: [Errno 111] Connection refused')': /simple/cmake/
ERROR: Could not find a version that satisfies the requirement cmake<4,>=3.26 (from versions: none)
ERROR: No matching distribution found for cmake<4,>=3.26
"""

HASHES = """\
ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package versions,
please update the hashes. Otherwise, examine the package contents carefully; someone may have tampered with them.
    horovod==0.28.1 from https://mirror/horovod-0.28.1.tar.gz (from -r /w/requirements.txt (line 1)):
        Expected sha256 92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0
             Got        aaaa
"""

CMAKE = """\
-- Found MPI: FALSE
CMake Error at cmake/Modules/FindTensorflow.cmake:40 (message):
  Could NOT find Tensorflow (missing: Tensorflow_LIBRARIES)
Call Stack (most recent call first):
"""

LINKER = """\
[ 98%] Linking CXX shared library mpi_lib.so
/usr/bin/ld: cannot find -ltensorflow_framework: No such file or directory
collect2: error: ld returned 1 exit status
"""

IMPORT = """\
Traceback (most recent call last):
  File "/env/lib/python3.11/site-packages/horovod/tensorflow/mpi_ops.py", line 53, in <module>
tensorflow.python.framework.errors_impl.NotFoundError: /w/mpi_lib.so: undefined symbol: _ZN10tensorflow8OpKernelD2Ev
python ended with code 1
"""


@pytest.mark.parametrize(
    ("log", "line", "cure"),
    [
        (COMPILER, "xla_mpi_ops.cc:27: tensorflow/x.h", ""),
        (BROKEN_COMPILER, '"/w/bin/c++" is not able', ""),
        (NO_NETWORK, "package index", "PIP_INDEX_URL"),
        (NO_NETWORK.splitlines()[-1], "index has no cmake<4,>=3.26", "PIP_INDEX_URL"),
        (HASHES, "SHA-256 differs", "pypi.org"),
        (CMAKE, "NOT find Tensorflow", ""),
        (LINKER, "cannot find -ltensorflow_framework", ""),
        (IMPORT, "NotFoundError: /w/mpi_lib.so: undefined symbol: _ZN10tensorflow8OpKernelD2Ev", ""),
        ("x.o: in function `f':\nx.cc:(.text+0x5): undefined reference to `g'", "undefined reference to `g'", ""),
        ("c++: fatal error: Killed signal terminated program cc1plus", "memory ran out", "--jobs 1"),
        (
            "/w/a.cc:1: fatal error: error writing to /w/x.s: No space left on device",
            "No space left",
            "TFDIST_CACHE_DIR",
        ),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_30'", "Unsupported gpu architecture", ""),
        ("error: externally-managed-environment", "this Python", "virtual environment"),
        ("$ python -c 'a.cc:1: error: x'\nall went well\nthen it ended\n\n", "then it ended", ""),
        ("", "without a word", ""),
    ],
)
def test_the_cause_is_one_line(log: str, line: str, cure: str) -> None:
    cause = find_cause(log)
    assert line in cause.line
    assert "\n" not in cause.line
    assert cure in cause.cure
    assert bool(cure) == bool(cause.cure)


def test_the_first_error_of_a_compiler_is_the_cause() -> None:
    log = "/w/a.cc:3:1: error: 'x' was not declared\n/w/b.cc:9:9: error: expected ';'\n"
    assert find_cause(log).line == "/w/a.cc:3: 'x' was not declared"


def test_a_full_disk_is_the_cause_of_what_the_compiler_says_before() -> None:
    log = "/w/a.cc:3:1: error: unexpected end of file\ncp: error writing: No space left on device\n"
    assert find_cause(log).line == "No space left on device"


def test_a_long_line_is_cut() -> None:
    assert len(find_cause("a.cc:1:1: error: " + "x" * 5000).line) <= 300
