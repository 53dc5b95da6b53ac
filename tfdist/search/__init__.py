"""Hyper-parameter search, in a script that `tfdist search` starts or from a program.

Example:
    >>> import tfdist
    >>> hp = tfdist.search.parameters()  # the defaults, outside of a search
    >>> hp.Float("lr", 1e-4, 1e-1, sampling="log", default=1e-3)
    0.001
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.tune.search.search_run import Search, run
    from tfdist.tune.search.search_trial import HyperParameters, folder, parameters, report
    from tfdist.tune.search.trial_callbacks import callbacks

__all__ = ["HyperParameters", "Search", "callbacks", "folder", "parameters", "report", "run"]

__getattr__, __dir__ = exported(__name__, __file__)
