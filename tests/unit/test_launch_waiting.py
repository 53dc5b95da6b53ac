"""A signal is heeded while a process is waited for, whichever thread the system hands it to."""

import signal
import subprocess
import sys
import threading

from tfdist.launch.process.waiting import wait_heeding_signals


def test_one_that_another_thread_gets() -> None:
    code = "import sys; sys.exit(7 if sys.stdin.read() else 8)"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        before = signal.signal(signal.SIGUSR2, lambda *_: process.communicate(b"heeded"))
        # the process ends by itself if nobody heeds the signal, with another code
        limit = threading.Timer(60, process.stdin.close)  # type: ignore[union-attr]
        other = threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR2))
        try:
            limit.start()
            other.start()
            assert wait_heeding_signals(process) == 7
        finally:
            limit.cancel()
            for thread in (other, limit):
                thread.join()
            signal.signal(signal.SIGUSR2, before)
