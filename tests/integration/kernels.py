"""A real Jupyter kernel for tests: cells are run in it, and what a front end would show comes back."""

import contextlib
import os
import queue
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

from tests.integration.light import python_path

ROOT = Path(__file__).parents[2]
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass
class Shown:
    """The output of a cell.

    Attributes:
        out, err: its streams, without colours.
        displays: the states of its displays, one after the other.
        result: the text of its last expression.
        error: the name of its exception.
        traceback: as it is shown.
    """

    out: str = ""
    err: str = ""
    displays: list[str] = field(default_factory=list)
    result: str = ""
    error: str = ""
    traceback: str = ""


class Kernel:
    """A kernel that runs."""

    def __init__(self, manager: KernelManager, client: Any) -> None:
        self.manager = manager
        self.client = client

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)

    def begin(self, code: str) -> str:
        """Send a cell, and return its name."""
        return str(self.client.execute(code))

    def end(self, cell: str, *, seconds: float = 200) -> Shown:
        """Return the output of the cell, once it is done."""
        shown, deadline = Shown(), time.monotonic() + seconds
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"the cell is not done after {seconds} s; it has shown {shown}") from None
            if message["parent_header"].get("msg_id") == cell:
                kind, content = message["msg_type"], message["content"]
                if kind == "status" and content["execution_state"] == "idle":
                    return shown
                _add(shown, kind, content)

    def run(self, code: str, *, seconds: float = 200) -> Shown:
        """Run a cell, and return what it has shown."""
        return self.end(self.begin(code), seconds=seconds)


def _add(shown: Shown, kind: str, content: dict[str, Any]) -> None:
    if kind == "stream":
        text = _ESCAPES.sub("", content["text"])
        if content["name"] == "stdout":
            shown.out += text
        else:
            shown.err += text
    elif kind in ("display_data", "update_display_data"):
        shown.displays.append(content["data"]["text/plain"])
    elif kind == "execute_result":
        shown.result = content["data"]["text/plain"]
    elif kind == "error":
        shown.error, shown.traceback = content["ename"], _ESCAPES.sub("", "\n".join(content["traceback"]))


@contextlib.contextmanager
def kernel(folder: Path, **environment: str) -> Iterator[Kernel]:
    """Yield a kernel; it is ended after the block.

    Args:
        folder: where it works, and where its temporary files and settings are.
        environment: variables for it.
    """
    for name in ("work", "tmp", "jupyter"):
        (folder / name).mkdir()
    places = {"PYTHONPATH": python_path(ROOT), "TMPDIR": str(folder / "tmp"), "IPYTHONDIR": str(folder / "jupyter")}
    places |= {"JUPYTER_RUNTIME_DIR": str(folder / "jupyter"), "JUPYTER_CONFIG_DIR": str(folder / "jupyter")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_CURRENT", "TFDIST_"))}
    manager = KernelManager(kernel_name="python3", transport="ipc", ip=str(folder / "tmp" / "k"))
    manager.start_kernel(cwd=str(folder / "work"), env={**kept, **places, **environment})
    client = manager.blocking_client()
    try:
        client.start_channels()
        client.wait_for_ready(timeout=200)
        yield Kernel(manager, client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()
