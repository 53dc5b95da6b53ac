"""Horovod for the installed TensorFlow: the public names of the package `tfdist-horovod`.

Example:
    >>> from tfdist import build
    >>> build.install(build.Options(mpi=True)).built_in          # doctest: +SKIP
    ('gloo', 'mpi')
"""

from tfdist.errors import MissingDependencyError

try:
    from tfdist_horovod import Options, Outcome, install
except ModuleNotFoundError as error:
    if error.name != "tfdist_horovod":
        raise
    raise MissingDependencyError(
        "the package tfdist-horovod, which builds Horovod, is not installed. Install it: pip install tfdist-horovod; "
        "from a checkout of tfdist: pip install ./packaging/horovod",
        name="tfdist-horovod",
    ) from error

__all__ = ["Options", "Outcome", "install"]
