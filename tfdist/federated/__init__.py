"""Federated training of Keras models: rounds over clients that keep their data.

An `App` describes what server and clients have in common; `simulate` runs it in one process. An `Aggregator` combines
many updates into one: it starts an `Aggregation` for each round, which takes the updates in order.

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
    from tfdist.federated.algorithms.algorithm import Participation
    from tfdist.federated.algorithms.averaging import FedAvg, FedProx
    from tfdist.federated.algorithms.scaffold import Scaffold
    from tfdist.federated.algorithms.server_optimizers import FedOpt
    from tfdist.federated.app import App
    from tfdist.federated.client_privacy import ClientPrivacy
    from tfdist.federated.client_update import Update
    from tfdist.federated.clients.data_partitions import split_by, split_dirichlet, split_iid
    from tfdist.federated.clients.directory_split import split_directory
    from tfdist.federated.robust.lying_clients import Liars
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
    from tfdist.federated.round_history import RoundRecord
    from tfdist.federated.secure_sums import SecureSums
    from tfdist.federated.simulation import Simulation, simulate

__all__ = [
    "Aggregation",
    "Aggregator",
    "App",
    "ClientPrivacy",
    "FedAvg",
    "FedOpt",
    "FedProx",
    "GeometricMedian",
    "Krum",
    "Liars",
    "Mean",
    "Median",
    "Mixing",
    "MultiKrum",
    "NormClipping",
    "Participation",
    "RobustRule",
    "RoundRecord",
    "Scaffold",
    "SecureSums",
    "Simulation",
    "TrimmedMean",
    "Update",
    "WholeRule",
    "simulate",
    "split_by",
    "split_directory",
    "split_dirichlet",
    "split_iid",
]

__getattr__, __dir__ = exported(__name__, __file__)
