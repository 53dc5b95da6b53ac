"""The exporter process of a job: runs `tfdist export` for as long as the job lasts.

It has a low priority and its own session. A line on standard input, or the end of standard input when the job's process
is gone, makes it export a last time and end.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread

import tfdist
from tfdist.waiting import end_process

#: from the last look to the end of the process; exporters get less, and the rest allows for a busy machine
END_SECONDS = 60.0
_NICE = 10


class Exporting:
    """The export of a job until `end`. `pid` is 0 if the process could not be started."""

    def __init__(
        self, job: str, exporters: Sequence[str], say: Callable[[str], None], *, every: int = 10, after: int = -1
    ) -> None:
        self._say = say
        self._process: subprocess.Popen[bytes] | None = None
        self.pid = 0
        root = str(Path(tfdist.__file__).parents[1])
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), root])
        # -P: a file mlflow.py next to the user's script is not the package
        command = [sys.executable, "-P", "-m", "tfdist", "export", "--beside", f"--every={every}", f"--after={after}"]
        try:
            self._process = subprocess.Popen(
                [*command, "--", job, *exporters],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,  # the keyboard's Ctrl-C is not for it
            )
        except OSError as error:
            say(f"warning: {', '.join(exporters)}: no process can be started ({error})")
            return
        self.pid = self._process.pid
        with contextlib.suppress(OSError, AttributeError):
            os.setpriority(os.PRIO_PROCESS, self.pid, _NICE)
        self._ends = False
        self._reader = Thread(target=self._read, name="exporters' messages", daemon=True)
        self._reader.start()

    def end(self, seconds: float = END_SECONDS) -> None:
        if self._process is None:
            return
        self._ends = True
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended
            self._process.stdin.write(b"\n")
            self._process.stdin.close()
        end_process(self._process, seconds)
        self._reader.join(1.0)
        self._process = None

    def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        last = ""
        with process.stdout as stream:
            for line in stream:
                last = line.decode(errors="replace").rstrip()
                if last.startswith("warning: "):
                    self._say(last)
        code = process.wait()
        if code and not self._ends:
            how = f"killed by signal {-code}" if code < 0 else f"code {code}"
            said = f": {last}" if last else ""
            self._say(f"warning: what exports the job has ended ({how}{said}); the job continues without it")
