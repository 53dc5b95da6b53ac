"""The actor that holds a bundle of a placement group, on whatever node Ray has put it. It knows nothing of tfdist.

Its class travels by value, so what the node lacks is said by the process that it starts.
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
    """Holds a bundle; the first of a node also runs the agent of that host."""

    def where(self) -> dict[str, Any]:
        """Return the node's address, and the numbers of the GPUs that are this bundle's."""
        import ray

        devices = ray.get_runtime_context().get_accelerator_ids().get("GPU", [])
        return {"address": ray.util.get_node_ip_address(), "devices": [str(one) for one in devices]}

    def hold(self) -> None:
        """Do nothing for ever: that this has ended says that the actor has."""
        threading.Event().wait()

    def serve(
        self, python: str, arguments: Sequence[str], variables: Mapping[str, str], call: Sequence[Any] | None
    ) -> tuple[int, list[str], bytes | None]:
        """Run a program that ends with this actor; return its exit code, its last lines and the file it made."""
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
    """Yield a folder that nobody else may enter; if this process is killed, the next job here removes it."""
    with tempfile.TemporaryDirectory(prefix="tfdist-job-call-") as folder:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):  # no locks here: then nobody removes it
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                with open(f"{folder}/host", "w", encoding="utf-8") as file:
                    file.write(socket.gethostname())
            yield folder
        finally:
            os.close(descriptor)
