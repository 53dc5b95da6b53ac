"""The actor that holds a bundle of a placement group, on whatever node Ray has put it. It knows nothing of tfdist.

Its class travels by value, so what the node lacks is said by the process that it starts.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
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

    def serve(self, python: str, arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[int, list[str]]:
        """Run a program that ends with this actor; return its exit code, and the last lines that it has written.

        Args:
            python: the interpreter; empty: that of this process.
            arguments: of it.
            variables: on top of this process's; one is a secret.
        """
        process = subprocess.Popen(
            [python or sys.executable, *arguments],
            env={**os.environ, **variables},
            stdin=subprocess.PIPE,  # closed by the kernel when this process ends, however it does
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert process.stdout is not None
        lines = [line.decode(errors="replace").rstrip() for line in process.stdout]
        return process.wait(), lines[-_LINES:]
