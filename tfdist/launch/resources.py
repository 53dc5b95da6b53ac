"""What a job holds besides its processes, each as a context that gives it back: signal handlers and a directory."""

import contextlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from types import FrameType

from tfdist.errors import TfdistError
from tfdist.launch import guardian
from tfdist.launch.supervise import Event, Received

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def signals_into(events: "SimpleQueue[Event]") -> Iterator[None]:
    """Turn SIGINT, SIGTERM and SIGHUP into events; one that is ignored (nohup, a background job) stays ignored.

    Outside of the main thread, where Python allows no handlers, nothing changes.
    """

    def put(number: int, frame: FrameType | None) -> None:
        events.put(Received(number=number))

    in_main = threading.current_thread() is threading.main_thread()
    previous = {s: signal.getsignal(s) for s in PASSED_ON if in_main and signal.getsignal(s) is not signal.SIG_IGN}
    for number in previous:
        signal.signal(number, put)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def job_directory(job_id: str) -> Iterator[Path]:
    """Yield a temporary directory, watched by a guardian that ends the job and removes it if this process is killed.

    Raises:
        TfdistError: no temporary directory can be written, or the guardian cannot be started.
    """
    try:
        directory = Path(tempfile.mkdtemp(prefix="tfdist-"))
    except OSError as error:
        raise TfdistError(
            f"no temporary directory can be made ({error}). Set TMPDIR to one that is writable."
        ) from error
    try:
        with _guardian(job_id, directory):
            yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _guardian(job_id: str, directory: Path) -> Iterator[None]:
    try:
        process = subprocess.Popen(
            [sys.executable, guardian.__file__, job_id, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,  # the keyboard's Ctrl-C is not for it
        )
    except OSError as error:
        raise TfdistError(f"no process can be started ({error}). Free memory or processes.") from error
    try:
        yield
    finally:
        try:
            process.communicate(guardian.DONE, timeout=guardian.DEADLINE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
