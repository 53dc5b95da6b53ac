"""Differentially private training, which bounds and accounts for what a model reveals about one example.

Example:
    >>> model = tfdist.privacy.make_private(model, epsilon=3, delta=1e-5)              # doctest: +SKIP
    >>> model.fit(tfdist.data.poisson((x, y), global_batch_size=256), epochs=10)       # doctest: +SKIP
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.privacy.budget import PrivacyBudgetError
    from tfdist.privacy.private_model import make_private

__all__ = ["PrivacyBudgetError", "make_private"]

__getattr__, __dir__ = exported(__name__, __file__)
