"""Wait for a process in a way that no signal is left lying meanwhile."""

import contextlib
import subprocess
from typing import Any

_LOOK_SECONDS = 0.2


def wait_heeding_signals(process: "subprocess.Popen[Any]") -> int:
    """Wait for the end of a process, with the handlers of this process run for every signal that arrives.

    Python runs handlers in its main thread. The system may hand a signal to any other thread, and it may come just
    before the main thread begins to wait; a wait without a limit goes on then, and Ctrl-C is forgotten.

    Args:
        process: as it was started.
    Returns:
        Its exit code.
    """
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(_LOOK_SECONDS)
