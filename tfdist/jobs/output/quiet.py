"""Filter known noise from this process' standard error, for a notebook kernel.

Native code writes to the descriptor, past `sys.stderr`; so the descriptor is what leads through a filter.
"""

import atexit
import contextlib
import functools
import os
import re
import threading

from tfdist.jobs.output.tf_log_filter import has_nvidia_device, known_noise, variables
from tfdist.variables import ALL_LOGS

_CHUNK = 1 << 16
_STANDARD_ERROR = 2
_END_SECONDS = 2.0
# How noise begins. What begins otherwise, such as the frames of a bar, is passed on before its line is complete.
_MAY_BE_NOISE = re.compile(rb"[IWEF]\d|\d{4}-|WARNING: |To enable|TF-TRT|[IWEF\dT]?$")


@functools.cache
def hide_noise() -> None:
    """Leave out, from now on, what TensorFlow writes to standard error at every start and tells nobody anything.

    To be called before TensorFlow is imported, first thing in a notebook. What is not known to be noise is written as
    it comes, and TFDIST_ALL_LOGS=1 shows all. Under `tfdist run` workers need no such call. A second call does nothing.

    Example:
        >>> import tfdist.jobs
        >>> tfdist.jobs.hide_noise()      # doctest: +SKIP
        >>> import keras                    # doctest: +SKIP
    """
    if ALL_LOGS.read(os.environ):
        return
    try:
        original = os.dup(_STANDARD_ERROR)
    except OSError:  # it is closed
        return
    os.environ.update(variables(os.environ, all_logs=False))
    reads, writes = os.pipe()
    os.dup2(writes, _STANDARD_ERROR)
    os.close(writes)
    noise = known_noise(has_gpu=has_nvidia_device())
    thread = threading.Thread(target=_filter, args=(reads, original, noise), name="tfdist-noise", daemon=True)
    thread.start()

    def put_back() -> None:
        os.dup2(original, _STANDARD_ERROR)  # the pipe ends, unless a child has it
        thread.join(timeout=_END_SECONDS)

    atexit.register(put_back)


def _filter(reads: int, original: int, noise: re.Pattern[bytes]) -> None:
    kept, midway = b"", False  # what may become noise; whether a line has been shown in part
    with contextlib.suppress(OSError):  # nobody reads any more
        while data := os.read(reads, _CHUNK):
            *lines, rest = (kept + data).split(b"\n")
            shown = b""
            for line in lines:
                shown += b"" if not midway and noise.search(line) else line + b"\n"
                midway = False
            if midway or not _MAY_BE_NOISE.match(rest):
                midway, shown, rest = midway or bool(rest), shown + rest, b""
            kept = rest
            _write(original, shown)
        _write(original, kept)


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
