"""Runs a script as ``python script.py`` would, in a process that ends with its agent and records its failure.

`python script_worker.py --parent PID --script train.py [arguments]`, or `--module package.module [arguments]`, or
`--task` to serve a task of a parameter-server cluster. PID is the agent's, followed by ":" and its parent's where that
is another process.

`__main__`, `sys.argv` and `sys.path[0]` are as without this file. An uncaught exception or a failing exit code is
written to TFDIST_ERROR_FILE as JSON, atomically. A note next to it has the exit code of the script, in case the process
does not end, and a list has AutoGraph's temporary files, which a killed process leaves. This file imports the standard
library alone: it is started by path, and nothing of tfdist is loaded before the script asks for it.
"""

import os
import sys
from types import TracebackType
from typing import NoReturn

END_NOTE = ".ended"
LISTING, GENERATED = ".generated", "__autograph_generated_file"
STACKS = 11  # offset from SIGRTMIN of the signal for stacks; `monitor.stacks` sends it
PR_SET_PDEATHSIG = 1
SIGKILL = 9


def main(argv: list[str]) -> None:
    _, processes, kind, *words = argv
    parent, _, keeper = processes.partition(":")
    if int(parent):
        end_with_parent(int(keeper or parent))
    tell_stacks_when_asked(os.environ.get("TFDIST_STACKS_FILE"))
    if kind == "--task":
        serve_task(int(parent))
    target, *arguments = words
    if "TFDIST_ERROR_FILE" in os.environ:
        list_generated_files(os.environ["TFDIST_ERROR_FILE"] + LISTING)
    process = os.getpid()
    end = End(os.environ.get("TFDIST_ERROR_FILE"))
    try:
        run_as_main(target, arguments, is_module=kind == "--module")
        end.note(0)
    except SystemExit as error:
        code = _exit_code(error)
        end.note(code)
        if code != 0 and os.getpid() == process:  # a fork of the script ends here too, and is not the worker
            record(error, exit_code=code)
        raise
    except KeyboardInterrupt as error:
        if os.getpid() == process:
            record(error, exit_code=130)
        end.note(130)
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the worker and is recorded
        if os.getpid() == process:
            record(error, exit_code=1)
        end.note(1)
        _end_as_uncaught(error)


def serve_task(parent: int) -> NoReturn:
    """Serve the task of TF_CONFIG for the chief, which needs no code of the user's, until this process is ended.

    Only signals of the parent count: a service manager sends them to every process of a job, and the chief has yet to
    save what is stored here.
    """
    import json
    import signal
    import threading

    ending = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def end_when_asked() -> None:
        while True:
            asked = signal.sigwaitinfo(ending)
            if parent in (0, asked.si_pid):
                os._exit(128 + asked.si_signo)

    if sys.path[:1] == [os.path.dirname(os.path.realpath(__file__))]:
        del sys.path[0]  # modules next to this file must not be imported by their short names
    # Blocked before anything starts a thread, as NumPy does: a foreign signal would end this process by any thread that
    # does not block it.
    signal.pthread_sigmask(signal.SIG_BLOCK, ending)
    threading.Thread(target=end_when_asked, name="end when asked", daemon=True).start()
    import tensorflow as tf

    configuration = json.loads(os.environ["TF_CONFIG"])
    task = configuration["task"]
    # The address 0.0.0.0 is TensorFlow's own choice; it offers no other.
    tf.distribute.Server(
        configuration["cluster"], job_name=task["type"], task_index=int(task["index"]), protocol="grpc"
    )  # never stops; it ends with the process
    while True:
        signal.pause()


def run_as_main(target: str, arguments: list[str], *, is_module: bool) -> None:
    """Run a script or a module as Python does; its exceptions are raised here."""
    sys.argv = [target, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(target))
    if is_module:
        import runpy

        runpy.run_module(target, run_name="__main__", alter_sys=True)
    else:
        _run_script(target)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent dies (Linux); if the parent is gone, end now."""
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # another system; the agent's guardian does it there
    if os.getppid() != parent:
        os._exit(128 + SIGKILL)


def tell_stacks_when_asked(path: str | None) -> None:
    """Let faulthandler write the stacks of all threads into a file, at a signal of its own."""
    if not path:
        return
    try:
        import faulthandler
        import signal

        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        faulthandler.register(signal.SIGRTMIN + STACKS, file=os.open(path, flags, 0o600), all_threads=True)
    except (ImportError, OSError, AttributeError):
        return  # another system, or the job is ending


def list_generated_files(listing: str) -> None:
    """List each file that AutoGraph creates, so that it can be removed after a kill."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event != "tempfile.mkstemp":
            return
        try:
            path = os.fsencode(arguments[0])  # type: ignore[arg-type]
            if os.path.basename(path).startswith(GENERATED.encode()):
                descriptor = os.open(listing, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
                os.write(descriptor, path + b"\0")
                os.close(descriptor)
        except (OSError, TypeError):
            pass  # the disk is full, or the job is ending: a file may be left then

    sys.addaudithook(hook)


class End:
    """Notes that the script has ended, and again when no code of it runs any more; `local_placement` reads them."""

    def __init__(self, path: str | None) -> None:
        import atexit

        self._path = path
        self._process = os.getpid()
        self._code: int | None = None
        atexit.register(self._write, runs_python=False)  # called behind all functions that the script registers

    def note(self, exit_code: int) -> None:
        """Note the exit code; threads and functions of `atexit` may still run."""
        self._code = exit_code
        self._write(runs_python=True)

    def _write(self, *, runs_python: bool) -> None:
        if not self._path or self._code is None or os.getpid() != self._process:
            return  # a fork of the script ends too, and is not the worker
        import contextlib
        import json
        import time

        with contextlib.suppress(OSError):
            temporary = f"{self._path}{END_NOTE}.{self._process}"
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump({"exit_code": self._code, "clock": time.monotonic(), "runs_python": runs_python}, file)
            os.replace(temporary, f"{self._path}{END_NOTE}")


def record(error: BaseException, *, exit_code: int) -> None:
    """Write the failure to TFDIST_ERROR_FILE; errors here must not hide it."""
    import contextlib
    import json
    import time
    import traceback

    now, clock = time.time(), time.monotonic()
    path = os.environ.get("TFDIST_ERROR_FILE")
    if not path:
        return
    with contextlib.suppress(Exception):
        shown = traceback.format_exception(type(error), error, _own_frames(error.__traceback__))
        content = {
            "time": now,
            "clock": clock,
            "type": type(error).__qualname__,
            "message": _message(error),
            "traceback": "".join(shown),
            "exit_code": exit_code,
        }
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8", errors="backslashreplace") as file:
            json.dump(content, file)
        os.replace(temporary, path)


def _run_script(path: str) -> None:
    from importlib.machinery import SourceFileLoader
    from types import ModuleType

    absolute = os.path.abspath(path)
    module = ModuleType("__main__")
    module.__file__ = absolute
    module.__loader__ = SourceFileLoader("__main__", absolute)
    module.__builtins__ = sys.modules["builtins"]  # type: ignore[attr-defined]
    module.__annotations__ = {}
    module.__cached__ = None  # type: ignore[attr-defined]
    sys.modules["__main__"] = module
    with open(path, "rb") as file:
        source = file.read()
    code = compile(source, absolute, "exec", dont_inherit=True)
    exec(code, module.__dict__)  # noqa: S102 - the purpose of this file


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without its top frames: of files that start a script, and of runpy."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    starting = tuple(os.path.join(package, room, "") for room in ("jobs", "processes"))
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != "<frozen runpy>" and not file.startswith(starting):
            break
        trace = trace.tb_next
    return trace


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - __str__ of any exception may fail in any way
        return "(its message cannot be shown)"


def _exit_code(error: SystemExit) -> int:
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _end_as_uncaught(error: BaseException) -> NoReturn:
    """Show the exception through sys.excepthook, without the frames of this file, and exit with code 1.

    A worker that has lost another shows the message alone: the cause is in the other.
    """
    error.__traceback__ = _own_frames(error.__traceback__)
    errors = sys.modules.get("tfdist.errors")
    if errors is not None and isinstance(error, errors.WorkerLostError):
        error.__traceback__ = error.__cause__ = None  # which suppresses the context too
    sys.last_type = type(error)  # as Python does, for functions of `atexit` that ask how the script has ended
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
