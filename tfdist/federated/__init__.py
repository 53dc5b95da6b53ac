"""Federated training of Keras models: rounds over clients that keep their data.

An `Aggregator` makes one update of many. It starts an `Aggregation` for each round, which takes the updates in order.

Example:
    >>> import numpy as np
    >>> from tfdist.federated import Aggregation, Aggregator, Mean, Update
    >>> rule: Aggregator = Mean()
    >>> aggregation: Aggregation = rule.start()
    >>> for value in (1.0, 3.0):
    ...     aggregation.add(Update({"bias": np.array([value])}, examples=10), weight=1.0)
    >>> aggregation.result()["bias"]
    array([2.])
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.federated.aggregation import Aggregation, Aggregator, Mean, WholeRule
    from tfdist.federated.client_update import Update
    from tfdist.federated.robust.robust_rules import (
        GeometricMedian,
        Krum,
        Median,
        Mixing,
        MultiKrum,
        NormClipping,
        RobustRule,
        TrimmedMean,
    )

__all__ = [
    "Aggregation",
    "Aggregator",
    "GeometricMedian",
    "Krum",
    "Mean",
    "Median",
    "Mixing",
    "MultiKrum",
    "NormClipping",
    "RobustRule",
    "TrimmedMean",
    "Update",
    "WholeRule",
]

__getattr__, __dir__ = exported(__name__, __file__)
