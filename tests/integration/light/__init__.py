"""A folder for PYTHONPATH in which scikit-learn and matplotlib cannot be imported.

Keras imports both wherever it finds them, which is more than a quarter of what it takes to start a process. A test
whose processes neither load the digits nor draw leaves them out. Another third is Python's search for cycles, which
`starting` makes rare.
"""

import os
from pathlib import Path

FOLDER = str(Path(__file__).parent)
STARTING = str(Path(FOLDER) / "starting")


def python_path(*folders: Path) -> str:
    """Return a PYTHONPATH with these folders, and without what takes long."""
    return os.pathsep.join(map(str, (FOLDER, STARTING, *folders)))
