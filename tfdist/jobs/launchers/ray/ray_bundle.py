"""The actor that holds a bundle of a placement group.

It imports nothing of tfdist: its class is sent by value, so that the process that it starts can report missing packages
    of the node.
"""

import contextlib
import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_LINES = 30


class Place:
    """An actor that holds a bundle; the first actor of a node also runs the host agent."""

    def where(self) -> dict[str, Any]:
        """Return the node's address, and the GPUs of this bundle."""
        import ray

        devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return {"address": ray.util.get_node_ip_address(), "devices": [str(one) for one in devices]}

    def hold(self) -> None:
        """Wait forever: the end of this call means the end of the actor."""
        threading.Event().wait()

    def serve(
        self, python: str, arguments: Sequence[str], variables: Mapping[str, str], call: Sequence[Any] | None
    ) -> tuple[int, list[str], bytes | None]:
        """Run a program that ends with this actor; return its exit code, its last lines, and its result file."""
        with contextlib.ExitStack() as stack:
            more, result = {}, ""
            if call is not None:
                name, content, result, variable = call
                folder = stack.enter_context(_private_folder())
                more = {variable: folder}
                with open(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(content)
            process = subprocess.Popen(
                [python or sys.executable, *arguments],
                env={**os.environ, **variables, **more},
                stdin=subprocess.PIPE,  # closed by the kernel when this process ends, however it does
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            assert process.stdout is not None
            lines = [line.decode(errors="replace").rstrip() for line in process.stdout]
            code, back = process.wait(), None
            if call is not None and os.path.exists(f"{folder}/{result}"):
                with open(f"{folder}/{result}", "rb") as file:
                    back = file.read()
            return code, lines[-_LINES:], back


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="tfdist-job-call-") as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # no locks here: then no other job removes it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with open(f"{folder}/host", "w", encoding="utf-8") as file:
                    file.write(socket.gethostname())
            yield folder
        finally:
            os.close(descriptor)
