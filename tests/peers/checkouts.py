"""Places of the test files: a checkout that the user names; for most of Keras', the installed package."""

import importlib.metadata
import importlib.util
from pathlib import Path

from tests.peers.suites import Project, Suite

REPOSITORIES = {
    Project.KERAS: "https://github.com/keras-team/keras",
    Project.TENSORFLOW: "https://github.com/tensorflow/tensorflow",
}


class MissingError(Exception):
    """Test files are not where they were looked for; the message says how to get them."""


def root(suite: Suite, given: Path | None) -> Path:
    """Return the folder below which a suite's files are.

    Args:
        suite: whose.
        given: the checkout that the user has named, or None.
    Raises:
        MissingError: they are not there.
    """
    folder = given if given is not None else _installed(suite)
    if folder is None:
        raise MissingError(
            f"the suite {suite.name!r} needs a checkout of {suite.project.value}. {_advice(suite.project)}"
        )
    if missing := [pattern for pattern in suite.files if not any(folder.glob(pattern))]:
        raise MissingError(f"{folder} has no {' and no '.join(missing)}. {_advice(suite.project)}")
    return folder


def files(suite: Suite, folder: Path) -> list[Path]:
    """Return the suite's files below a folder, sorted."""
    return sorted({path for pattern in suite.files for path in folder.glob(pattern)})


def _installed(suite: Suite) -> Path | None:
    if suite.needs_checkout:
        return None
    spec = importlib.util.find_spec(suite.project.value)
    folder = Path(spec.origin).parents[1] if spec and spec.origin else None
    return folder if folder and files(suite, folder) else None


def _advice(project: Project) -> str:
    name, url = project.value, REPOSITORIES[project]
    version = importlib.metadata.version(name)
    return (
        f"Get the one of the version that is installed:\n"
        f"  git clone --depth 1 --branch v{version} {url} /tmp/{name}\n"
        f"  make peers {name.upper()}=/tmp/{name}"
    )
