"""A worker process of a pool, which runs named functions until its pool closes the pipe.

`python -m tfdist.processes.pool.pool_worker REQUESTS REPLIES` gets two pipes. Its output goes to the pool's log.
"""

import faulthandler
import importlib
import os
import queue
import signal
import sys
import threading
import traceback
from typing import Any

from tfdist.processes.pool import pool_channel

_TRACEBACK_CHARACTERS = 8000


def main() -> None:
    """Serve requests ``{"target": "module:function", "arguments": {...}}`` until the pool closes the pipe."""
    requests, replies = int(sys.argv[1]), int(sys.argv[2])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the pool requests the stacks of silent workers
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, waiting), name="requests", daemon=True).start()
    while True:
        pool_channel.write(replies, _answer(waiting.get()))


def _receive(requests: int, waiting: "queue.SimpleQueue[Any]") -> None:
    try:
        while True:
            waiting.put(pool_channel.read(requests))
    except (EOFError, OSError):
        # The pool is gone, or done: end now, also in the middle of a step. TensorFlow's own way out may wait for peers.
        os._exit(0)


def _answer(request: Any) -> dict[str, Any]:
    module, _, name = request["target"].partition(":")
    try:
        answer = {"value": getattr(importlib.import_module(module), name)(**request["arguments"])}
        pool_channel.pack(answer)
        return answer
    except BaseException as error:  # noqa: BLE001 (whatever a function raises is its result)
        return {
            "error": {
                "types": [kind.__name__ for kind in type(error).__mro__ if kind is not object],
                "message": str(error)[:_TRACEBACK_CHARACTERS],
                "traceback": traceback.format_exc()[-_TRACEBACK_CHARACTERS:],
            }
        }


if __name__ == "__main__":
    main()
