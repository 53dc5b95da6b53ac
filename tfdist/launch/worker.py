"""Runs a script as ``python script.py`` would, in a process that does not outlive its agent and records its failure.

    python worker.py --parent PID --script train.py [arguments]
    python worker.py --parent PID --module package.module [arguments]

The script finds `__main__`, `sys.argv` and `sys.path[0]` as it would without this file. An exception that nobody
caught, or an exit with a code that is not 0, is written to TFDIST_ERROR_FILE as JSON, under another name first, so that
the file is complete once it exists. This file imports the standard library only: it is started by its path, and nothing
of tfdist is loaded before the script asks for it.
"""

import os
import sys
from types import TracebackType
from typing import NoReturn

PR_SET_PDEATHSIG = 1
SIGKILL = 9


def main(argv: list[str]) -> None:
    """Run what the arguments name, and end as it ends.

    Args:
        argv: ["--parent", PID, "--script" or "--module", target, the target's own arguments ...]; with the PID 0 the
            process may outlive anybody.
    """
    _, parent, kind, target, *arguments = argv
    if int(parent):
        end_with_parent(int(parent))
    process = os.getpid()
    sys.argv = [target, *arguments]
    if not sys.flags.safe_path:
        folder = os.getcwd() if kind == "--module" else os.path.dirname(os.path.realpath(target))
        sys.path[0] = folder
    try:
        if kind == "--module":
            _run_module(target)
        else:
            _run_script(target)
    except SystemExit as error:
        code = _exit_code(error)
        if code != 0 and os.getpid() == process:  # a fork of the script ends here too, and is not the worker
            record(error, exit_code=code)
        raise
    except KeyboardInterrupt as error:
        if os.getpid() == process:
            record(error, exit_code=130)
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it ends the worker and is recorded
        if os.getpid() == process:
            record(error, exit_code=1)
        _end_as_uncaught(error)


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, where it can (Linux); no parent left: end now."""
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # another system; the agent's guardian does it there
    if os.getppid() != parent:
        os._exit(128 + SIGKILL)


def record(error: BaseException, *, exit_code: int) -> None:
    """Write the failure to TFDIST_ERROR_FILE, if that is set; what goes wrong with it must not hide the failure."""
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
    exec(code, module.__dict__)  # noqa: S102 - running the user's script is what this file is for


def _run_module(name: str) -> None:
    import runpy

    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback without the frames of this file, of others beside it and of runpy at its top."""
    folder = os.path.dirname(__file__)
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != "<frozen runpy>" and os.path.dirname(file) != folder:
            break
        trace = trace.tb_next
    return trace


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - the message of somebody's exception may fail in any way
        return "(its message cannot be shown)"


def _exit_code(error: SystemExit) -> int:
    """Return the code with which Python ends for this exception."""
    if error.code is None:
        return 0
    return error.code & 0xFF if isinstance(error.code, int) else 1


def _end_as_uncaught(error: BaseException) -> NoReturn:
    """Show the exception through sys.excepthook, without the frames of this file, and exit with code 1."""
    error.__traceback__ = _own_frames(error.__traceback__)
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
