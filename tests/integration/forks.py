"""Scripts run one after the other in forks of a process that has imported TensorFlow: a second each instead of five.

python forks.py      reads a line of JSON per script, {"argv", "environment", "output"}, and answers its exit code
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.integration.light import python_path

ROOT = Path(__file__).parents[2]
DEADLINE_SECONDS = 120


class Forks:
    """The process that forks."""

    def __init__(self, process: "subprocess.Popen[str]", folder: Path) -> None:
        self._process = process
        self._folder = folder
        self.output = ""

    def run(self, *argv: str, **environment: str) -> int:
        """Run a script to its end; return its exit code, negative for a signal. What it wrote is in `output`."""
        log = self._folder / "output"
        request = {"argv": list(argv), "environment": environment, "output": str(log)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        self.output = log.read_text(errors="replace")
        assert answer, "the process that forks has ended"
        return int(answer)


@contextlib.contextmanager
def forks(folder: Path, environment: Mapping[str, str]) -> Iterator[Forks]:
    """Yield a process that forks; it is ended after the block."""
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**environment, "PYTHONPATH": python_path(ROOT)},
        cwd=folder,
    )
    try:
        yield Forks(process, folder)
    finally:
        process.stdin.close()  # type: ignore[union-attr]
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()  # type: ignore[union-attr]


def _serve() -> None:
    import signal

    import keras  # noqa: F401
    import tensorflow  # noqa: F401

    import tfdist.callbacks.backup_and_restore
    import tfdist.data.reader
    import tfdist.strategies.mirrored  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            signal.alarm(DEADLINE_SECONDS)
            _run(request["argv"], request["environment"], request["output"])
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def _run(argv: Sequence[str], environment: Mapping[str, str], output: str) -> None:
    import runpy
    import traceback

    code = 1
    try:
        os.environ.update(environment)
        sys.argv = list(argv)
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for number, stream in ((nothing, 0), (file, 1), (file, 2)):
            os.dup2(number, stream)
        runpy.run_path(argv[0], run_name="__main__")
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - whatever it is, it is in the output, and the fork ends here
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
