"""Shared parts of `tfdist federated server` and `client`."""

import importlib.util
from typing import TYPE_CHECKING

import click

from tfdist.errors import MissingDependencyError

if TYPE_CHECKING:
    from tfdist.federated import App, SecureSums

secure_option = click.option(
    "--secure", is_flag=True, help="Secure aggregation; on both sides. Implied if APP.PY has secure=SecureSums(...)."
)


def require_cryptography() -> None:
    """Refuse to begin without what encrypts."""
    if importlib.util.find_spec("cryptography") is None:
        raise MissingDependencyError(
            "the package cryptography is not installed, which connections between hosts need. Run: pip install "
            "'tfdist[federated]'",
            name="cryptography",
        )


def sums_of(app: "App", secure: bool) -> "SecureSums | None":
    """The application's settings of secure aggregation, or the usual ones if it is asked for."""
    from tfdist.federated import SecureSums

    return app.secure or (SecureSums() if secure else None)
