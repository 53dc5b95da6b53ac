"""The notebooks: each runs from top to bottom in a real kernel, and lies in the repository without outputs.

The kernels, and the workers that these start, are forks that have TensorFlow already, but for one, which starts as a
user's does. How a notebook starts workers otherwise is what `test_notebook.py` looks at.
"""

import base64
import contextlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from jupyter_client.provisioning import local_provisioner
from nbclient import NotebookClient

from tests.integration import light
from tests.integration.forks import KERNEL, Fork, Forks

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = (
    "01_choose_a_strategy",
    "02_equivalence_matrix",
    "03_tfrecord_data",
    "04_mixed_precision_and_large_batch",
    "05_fault_tolerance",
    "06_federated",
    "07_larger_model",
)
AS_A_USER = "06_federated"  # starts no workers, shows TensorFlow's messages on import, and traces little
CELL_SECONDS = 300  # a deadline, for a machine that does other things; on two quiet cores no notebook takes 45 s
PNG = b"\x89PNG\r\n\x1a\n"


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_they_are_all_there() -> None:
    assert tuple(path.stem for path in NOTEBOOKS) == NAMES
    page = (ROOT / "notebooks" / "README.md").read_text()
    for name in NAMES:
        assert f"({name}.ipynb)" in page


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_lie_here_without_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert notebook.metadata.keys() == {"kernelspec", "language_info"}
    assert notebook.metadata.kernelspec == {"display_name": "Python 3", "language": "python", "name": "python3"}
    assert notebook.metadata.language_info == {"name": "python"}, "a version of Python is the machine's"
    for number, cell in enumerate(notebook.cells):
        assert not cell.metadata, f"cell {number} has metadata: {cell.metadata}"
        assert not cell.get("outputs"), f"cell {number} has outputs: clear them before saving"
        assert cell.get("execution_count") is None, f"cell {number} was run: clear the outputs before saving"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_name_no_place_of_a_machine_and_their_links_lead_somewhere(path: Path) -> None:
    text = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells)
    assert not re.search(r"(?<![\w.])/(home|root|Users|tmp|work|mnt)/", text)
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    for target in links:
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


@contextlib.contextmanager
def forked_kernels(forking: Forks) -> Iterator[None]:
    """Let kernels be forks."""
    with contextlib.ExitStack() as stack, pytest.MonkeyPatch.context() as patch:

        def launched(command: list[str], *, cwd: str, env: dict[str, str], **_: object) -> Fork:
            assert command[1:3] == ["-m", "ipykernel_launcher"]
            kernel = stack.enter_context(forking.start(KERNEL, *command[3:], cwd=Path(cwd), **env))
            for stream in ("stdin", "stdout", "stderr"):
                setattr(kernel, stream, None)  # as those of a kernel are that writes where the test does
            return kernel

        patch.setattr(local_provisioner, "launch_kernel", launched)
        yield


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forking: Forks) -> None:
    for name in ("work", "tmp", "jupyter"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([light.STARTING, str(ROOT)]))
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # a kernel would take itself for a part of the test
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=CELL_SECONDS, kernel_name="python3", resources={"metadata": {"path": str(tmp_path / "work")}}
    )
    before = set(psutil.pids())
    with contextlib.nullcontext() if path.stem == AS_A_USER else forked_kernels(forking):
        client.execute()  # an exception of a cell is one of this line, and its text has the cell
    shown = [output for cell in code_cells(notebook) for output in cell.outputs]
    assert not [output for output in shown if output.output_type == "error"]
    pictures = [o.data["image/png"] for o in shown if o.output_type == "display_data" and "image/png" in o.data]
    assert pictures, "no picture was drawn"
    assert all(base64.b64decode(picture).startswith(PNG) for picture in pictures)
    pages = [
        output.data["text/html"] for output in shown if 'class="tfdist"' in output.get("data", {}).get("text/html", "")
    ]
    assert len(pages) == ("Monitor(" in str(code_cells(notebook)))
    assert all("bound by" in page and "forward" in page and ", ended" not in page for page in pages)
    assert not list((tmp_path / "work").iterdir()), "it leaves files where it was started"
    assert not list((tmp_path / "tmp").glob("tf*")), "it leaves temporary files"
    assert not [p for p in set(psutil.pids()) - before if path.stem in " ".join(_command(p))]
    text = json.dumps(shown)
    assert "Traceback" not in text, text.split("Traceback", 1)[1][:4000]
    assert "absl::InitializeLog" not in text, "what TensorFlow writes at every start is noise"


def _command(pid: int) -> list[str]:
    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.Error:
        return []
