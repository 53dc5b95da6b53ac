"""A process of a task pool, which calls any function that it receives, and sends back the result.

Its pool starts it as ``python -m tfdist.processes.pool.task_worker CONNECTION``, and alone holds the other end. It
does not run the pool's script. It ends when the connection does, also in the middle of a task.
"""

import os
import pickle
import queue
import sys
import threading
import traceback
from multiprocessing.connection import Connection

import cloudpickle


def main() -> None:
    """Serve tasks until the pool is gone."""
    connection = Connection(int(sys.argv[1]))
    sys.path[:] = pickle.loads(connection.recv_bytes())  # noqa: S301 - from the process that started this one
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(connection, waiting), name="tasks", daemon=True).start()
    while True:
        connection.send_bytes(_answer(waiting.get()))


def _receive(connection: Connection, waiting: "queue.SimpleQueue[bytes]") -> None:
    try:
        while True:
            waiting.put(connection.recv_bytes())
    except (EOFError, OSError):
        os._exit(0)  # the pool is gone


def _answer(task: bytes) -> bytes:
    try:
        function, arguments = pickle.loads(task)  # noqa: S301 - likewise
        return bytes(cloudpickle.dumps((True, function(*arguments))))
    except BaseException as error:  # noqa: BLE001 - the caller gets it, whatever it is
        text = "".join(traceback.format_exception(error))
        try:
            answer = bytes(cloudpickle.dumps((False, (error, text))))
            pickle.loads(answer)  # noqa: S301 - an error whose constructor takes more than its message fails here
            return answer
        except Exception:  # noqa: BLE001 - an exception may hold anything
            return bytes(cloudpickle.dumps((False, (RuntimeError(f"{type(error).__name__}: {error}"), text))))


if __name__ == "__main__":
    main()
