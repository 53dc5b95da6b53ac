"""Serves one task of a parameter-server cluster: a worker or a parameter server, which need no code of the user's.

    python task.py --parent PID

The cluster and the task are read from TF_CONFIG. The process computes and stores what the chief asks it to, until it is
ended. It does not outlive the process that started it. Signals that ask it to end count if that one sends them: a
service manager sends them to every process of a job, and the chief has yet to save what is stored here. Like `worker`,
this file is started by its path.
"""

import json
import os
import signal
import sys
import threading
from typing import NoReturn

PR_SET_PDEATHSIG = 1
SIGKILL = 9
STACKS = 11  # as in `process/script_worker.py`
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def main(argv: list[str]) -> NoReturn:
    """Serve until the process is ended."""
    _, parent = argv
    if sys.path[:1] == [os.path.dirname(os.path.realpath(__file__))]:
        del sys.path[0]  # modules next to this file must not be imported by their short names
    if int(parent):
        end_with_parent(int(parent))
    tell_stacks_when_asked(os.environ.get("TFDIST_STACKS_FILE"))
    configuration = json.loads(os.environ["TF_CONFIG"])
    task = configuration["task"]
    serve(configuration["cluster"], task["type"], int(task["index"]), parent=int(parent))


def serve(cluster: dict[str, list[str]], task_type: str, task_index: int, *, parent: int) -> NoReturn:
    """Serve a task of the cluster, and do not return."""
    # Blocked before anything starts a thread, NumPy's among them: a foreign signal would end this process
    # by any thread that does not block it.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    threading.Thread(target=_end_when_asked, args=(parent,), daemon=True).start()
    import tensorflow as tf

    # The address 0.0.0.0 is TensorFlow's own choice; it offers no other.
    server = tf.distribute.Server(cluster, job_name=task_type, task_index=task_index, protocol="grpc")
    del server  # TensorFlow's server never stops; it ends with the process
    while True:
        signal.pause()


def _end_when_asked(parent: int) -> NoReturn:
    while True:
        asked = signal.sigwaitinfo(_ENDING)
        if parent in (0, asked.si_pid):
            os._exit(128 + asked.si_signo)


def end_with_parent(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies, where it can (Linux); no parent left: end now."""
    try:
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:
        os._exit(128 + SIGKILL)


def tell_stacks_when_asked(path: str | None) -> None:
    """Let faulthandler write the stacks of all threads into a file, at a signal of its own."""
    if not path:
        return
    try:
        import faulthandler

        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        faulthandler.register(signal.SIGRTMIN + STACKS, file=os.open(path, flags, 0o600), all_threads=True)
    except (ImportError, OSError, AttributeError):
        return


if __name__ == "__main__":
    main(sys.argv[1:])
