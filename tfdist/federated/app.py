"""A federated application: the model, the data of each client, and the algorithm; the same for server and clients."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.federated.aggregation import Aggregator, Mean
from tfdist.federated.algorithms.algorithm import Algorithm, Participation
from tfdist.federated.client_privacy import ClientPrivacy, require_bounded, require_no_statistics
from tfdist.federated.rounds.round_rules import RoundRules
from tfdist.federated.secure_sums import SecureSums

if TYPE_CHECKING:
    import keras

    from tfdist.compression import Codec
    from tfdist.federated.clients.client_data import ClientData, Local
    from tfdist.federated.clients.local_training import LocalTrainer


@dataclass(frozen=True)
class App:
    """An application of server and clients: one file that all of them run.

    Args:
        make_model: a function that returns the compiled model with its initial weights; if it creates the model in a
            strategy's scope, the model trains under that strategy.
        client_data: a function of a client's name, a mapping of names, a sequence, or a folder with a directory of
            `tfdist.data` for each client. A client's data are arrays (x, y) or (x, y, sample_weight), a
            `tf.data.Dataset` of batches, or the path of a directory of `tfdist.data`.
        algorithm: the federated algorithm, such as `FedAvg(epochs=1, batch_size=32)`.
        clients: the names of the clients, or their number: then the names are "0", "1" and so on. Default: as in
            client_data.
        test_data: the data on which the server evaluates, of the same kinds as a client's data.
        participation: the selection of the clients of a round, and the time for which the round waits for them.
        aggregator: the rule that combines many updates into one; by default the weighted mean.
        personal_layers: the names of the layers that each client keeps for itself.
        secure: the settings of secure aggregation, for a run over real processes; None: no secure aggregation.
        compression: the codec of a client's update, such as "qsgd" or `tfdist.compression.TopK()`; None: no
            compression.
        privacy: a budget that bounds what the model reveals about any one client; None: no such bound.

    Raises:
        ConfigTypeError: make_model is not a function, or algorithm is not an algorithm.
        ConfigError: personal layers, compression or privacy do not fit the other settings.

    Example:
        >>> import numpy as np
        >>> from tfdist.federated import App, FedAvg
        >>> def make_model():
        ...     import keras
        ...     model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        ...     model.compile(keras.optimizers.SGD(0.1), "mse")
        ...     return model
        >>> data = {"berlin": (np.ones((8, 2)), np.ones(8)), "paris": (np.ones((4, 2)), np.zeros(4))}
        >>> App(make_model, data, FedAvg()).names()
        ('berlin', 'paris')
    """

    make_model: "Callable[[], keras.Model]"
    client_data: "ClientData"
    algorithm: Algorithm
    clients: Sequence[str] | int | None = None
    test_data: Any = None
    participation: Participation = field(default_factory=Participation)
    aggregator: Aggregator = field(default_factory=Mean)
    personal_layers: Sequence[str] = ()
    secure: SecureSums | None = None
    compression: "str | Codec | None" = None
    privacy: ClientPrivacy | None = None

    def __post_init__(self) -> None:
        for name, needed, what in (
            ("make_model", "__call__", "a function that returns a compiled model"),
            ("algorithm", "update", "an algorithm, such as FedAvg()"),
            ("aggregator", "start", "an aggregator, such as Mean()"),
        ):
            value = getattr(self, name)
            if not hasattr(value, needed) or (name != "make_model" and isinstance(value, type)):
                raise ConfigTypeError(f"{name} is {value!r}; it must be {what}.", name=name, received=value)
        if isinstance(self.personal_layers, str):
            raise ConfigTypeError(
                f"personal_layers is {self.personal_layers!r}; it must be a sequence of names, such as ['head'].",
                name="personal_layers",
                received=self.personal_layers,
            )
        if self.personal_layers and self.test_data is not None and self.participation.evaluate_on == "server":
            raise ConfigError(
                "personal_layers stay with the clients, so the server cannot evaluate on test_data. "
                'Leave test_data out, or pass Participation(evaluate_on="clients").',
                name="test_data",
                received="test_data",
            )
        if self.algorithm.has_controls and self.compression not in (None, "none"):
            raise ConfigError(
                f"compression is {self.compression!r}, and {type(self.algorithm).__name__} needs control variates on "
                "which clients and server agree to the bit. Leave it out, or use FedProx.",
                name="compression",
                received=self.compression,
            )
        if self.privacy is not None:
            require_bounded(self.algorithm, self.aggregator)

    def names(self) -> tuple[str, ...]:
        """Return the names of all clients.

        Returns:
            The names in `clients`, or else in `client_data`.
        Raises:
            ConfigError: client_data is a function and clients is not given.
        """
        from tfdist.federated.clients.client_data import names_of

        return names_of(self.client_data, self.clients)

    def data_of(self, client: str) -> "Local":
        """Return the data of one client, for its training.

        Args:
            client: the name of the client.
        Returns:
            The arrays or the dataset, with the number of examples.
        Raises:
            ConfigError: there is no such client, or its data cannot be used.
        """
        from tfdist.federated.clients.client_data import data_of

        return data_of(self.client_data, client)

    def trainer(self) -> "LocalTrainer":
        """Make the model, and a trainer that trains it for one client after another.

        Returns:
            A trainer; it needs a second for its first training, and little for all later ones.
        Raises:
            ConfigError: the model cannot be used.
        """
        from tfdist.federated.clients.local_training import LocalTrainer

        trainer = LocalTrainer(self.make_model, self.algorithm, self.personal_layers, self.compression)
        if self.privacy is not None:
            require_no_statistics(trainer.model)
        return trainer

    def rules(self, *, rounds: int, clients: int, seed: int = 0, secure: bool = False) -> RoundRules:
        """Return the rules of a run.

        Args:
            rounds: the number of rounds of the run.
            clients: the number of clients.
            seed: the seed that decides which clients take part in which round.
            secure: whether secure aggregation adds up their updates.
        Returns:
            The rules for `tfdist.federated.rounds.RoundMachine`. A round begins once all clients are connected, or at
            the deadline with as many as it asks.
        Raises:
            ConfigError: the rules contradict each other, such as a minimum above the clients of a round.
        """
        taken = self.participation
        target = max(1, round(taken.fraction * clients))
        seconds = taken.deadline_seconds
        samples = self.privacy is not None and not secure
        if samples and (taken.minimum, taken.spare) != (1, 0.0):
            raise ConfigError(
                f"minimum is {taken.minimum} and spare {taken.spare:g}; with privacy a round takes each client by a "
                "probability of its own, and adds noise however many there are. Leave both out.",
                name="minimum",
                received=taken.minimum,
            )
        return RoundRules(
            rounds=rounds,
            target=target,
            minimum=0 if samples else taken.minimum,
            spare=min(math.ceil(taken.spare * target), max(clients - target, 0)),
            wait_for=clients,
            attempts=taken.attempts,
            select_seconds=seconds,
            train_seconds=seconds,
            evaluate_seconds=seconds,
            evaluate_every=taken.evaluate_every,
            evaluate_on="nothing" if taken.evaluate_on == "server" and self.test_data is None else taken.evaluate_on,
            seed=seed,
            rate=taken.fraction if samples else None,
        )


def training_seed(seed: int, round_index: int, client: str) -> int:
    """Return the seed of one client's training in one round, the same for every attempt at the round.

    Example:
        >>> training_seed(0, 3, "berlin") == training_seed(0, 3, "berlin") != training_seed(0, 4, "berlin")
        True
    """
    digest = hashlib.sha256(f"{seed}\0{round_index}\0{client}".encode()).digest()
    return int.from_bytes(digest[:7], "little")
