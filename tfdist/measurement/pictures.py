"""What pictures of measurements have in common."""

from typing import Any

from tfdist.errors import MissingDependencyError

__all__ = ["plain", "require_matplotlib"]


def require_matplotlib() -> None:
    """Raise now if the picture cannot be drawn later.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "matplotlib is not installed; it draws the picture. Install it: python -m pip install 'tfdist[demo]'"
        ) from error


def plain(axes: Any) -> None:
    """Give axes a pale grid and no box."""
    axes.grid(color="#e4e4e4", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
