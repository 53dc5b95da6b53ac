"""The common style of measurement plots."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError, MissingDependencyError


def require_matplotlib() -> None:
    """Raise MissingDependencyError if Matplotlib is missing, before a measurement begins."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "matplotlib is not installed; it draws the picture. Install it: python -m pip install 'tfdist[demo]'"
        ) from error


def plain(axes: Any) -> None:
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def figure_of(width: float, height: float, *, dpi: int = 200) -> Any:
    """Return an empty figure of this size in inches."""
    require_matplotlib()
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    return Figure(figsize=(width, height), dpi=dpi, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12))


def save(write: Callable[[Path], Any], path: str | os.PathLike[str]) -> None:
    """Save a picture by its own method, such as `Figure.savefig`; the name of the file says the format."""
    try:
        write(Path(path))
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"the picture is {os.fspath(path)!r}: {error}. Let its name end with .png.", path=path
        ) from error


def caption(machine: Mapping[str, str]) -> str:
    """Return a line with the versions and the machine of a benchmark."""
    return (
        f"TensorFlow {machine['tensorflow']}, Horovod {machine['horovod']}, {machine['cores']} cores of one machine, "
        f"{machine['processor']}; {machine['time'][:10]}; load average {machine['load average']} before, "
        f"{machine['load average at the end']} after"
    )
