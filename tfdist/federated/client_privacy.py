"""Privacy of whole clients: a bound on what a trained model reveals about any one client, with all of its examples."""

import hashlib
import json
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.errors import ConfigError, CorruptDataError, UnsupportedError
from tfdist.federated.aggregation import Aggregator, Mean
from tfdist.federated.algorithms.algorithm import WEIGHTS, Algorithm
from tfdist.federated.client_update import Arrays, Update, require_same_shapes
from tfdist.privacy import accounting
from tfdist.privacy.accounting import NoisySteps
from tfdist.privacy.budget import Budget
from tfdist.storage.files import write_durably

KEY_FILE = "privacy_key"
_HINT = "Run fewer rounds, or say before the first run how many there will be: ClientPrivacy(rounds=...)."


@dataclass(frozen=True, kw_only=True)
class ClientPrivacy:
    """A budget of (epsilon, delta) for each client: the model reveals little more with a client than without it.

    The server clips each update to the norm ``clip``, adds Gaussian noise to the sum, and divides by the expected
    number of clients. Each client takes part in a round with a probability, the participation's ``fraction``,
    independently of the others. Under secure aggregation clients clip and add the noise themselves, and taking part
    hides nothing.

    Args:
        epsilon: the epsilon of the budget.
        delta: the probability with which the budget may fail, less than 1 / clients.
        clip: the largest norm of a client's change, over all weights.
        noise_multiplier: the standard deviation of the noise of the sum, in units of ``clip``. Default: the smallest
            with which the planned rounds spend the budget.
        rounds: the number of planned rounds, over all runs. Default: the rounds of the first run.
        seed: the seed of noise and samples, for tests: anyone who knows it can remove the noise. Default: secret bits.

    Raises:
        ConfigError: a number is out of bounds.

    Example:
        >>> ClientPrivacy(epsilon=3, delta=1e-3, noise_multiplier=1.2).clip
        1.0
    """

    epsilon: float
    delta: float
    clip: float = 1.0
    noise_multiplier: float | None = None
    rounds: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        validation.number("epsilon", self.epsilon, above=0.0)
        accounting.checked_delta(self.delta)
        validation.number("clip", self.clip, above=0.0)
        if self.noise_multiplier is not None:
            accounting.checked_noise(self.noise_multiplier)
        if self.rounds is not None:
            validation.integer("rounds", self.rounds, minimum=1)
        if self.seed is not None:
            validation.integer("seed", self.seed, minimum=0)


def noise_of(privacy: ClientPrivacy, rate: float, rounds: int | None) -> float:
    """Return the noise multiplier for this number of planned rounds, unless the settings give it or another number."""
    if privacy.noise_multiplier is not None:
        return float(privacy.noise_multiplier)
    planned = privacy.rounds or rounds
    if planned is None:
        raise ConfigError(
            "clients add the noise under secure aggregation, and must know it. Pass rounds or noise_multiplier to "
            "ClientPrivacy.",
            name="rounds",
            received=None,
        )
    return accounting.noise_multiplier_for(privacy.epsilon, privacy.delta, rate, planned)


def require_spendable(privacy: ClientPrivacy, rounds: int) -> None:
    """Raise `PrivacyBudgetError` if this number of rounds, with noise by the clients, spends more than the budget."""
    budget = Budget(float(privacy.epsilon), float(privacy.delta))
    budget.require(NoisySteps(noise_of(privacy, 1.0, None), 1.0, rounds), what="rounds", hint=_HINT)


def require_bounded(algorithm: Algorithm, aggregator: Aggregator) -> None:
    """Refuse settings that let a client move the sum by more than the norm to which it is clipped."""
    if algorithm.has_controls:
        raise ConfigError(
            f"{type(algorithm).__name__} keeps exact control variates at clients and server; noise is in the weights "
            "alone. Use FedAvg, FedProx or FedOpt with privacy.",
            name="algorithm",
            received=type(algorithm).__name__,
        )
    if not algorithm.weight(1) == algorithm.weight(1 << 40) == 1.0:
        raise ConfigError(
            "a client counts by its examples; with privacy each must count the same, and the number of its examples "
            'stay hidden. Pass weighting="uniform" to the algorithm.',
            name="weighting",
            received=algorithm.weight(1 << 40),
        )
    if not isinstance(aggregator, Mean):
        raise ConfigError(
            f"aggregator is {type(aggregator).__name__}, of whose result nothing bounds a client's part. Use Mean() "
            "with privacy: updates are clipped, which bounds what a liar can do, too.",
            name="aggregator",
            received=type(aggregator).__name__,
        )


def require_no_statistics(model: Any) -> None:
    """Refuse a model that learns statistics from batches, to which no noise is added."""
    import keras

    from tfdist.compat.keras import keras_trainer

    for layer in keras_trainer.layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable:
            raise UnsupportedError(
                f"the layer {layer.name!r} has statistics of the clients' examples, which noise would make useless. "
                "Use GroupNormalization or LayerNormalization, or freeze it: layer.trainable = False.",
                name=layer.name,
            )


@dataclass(frozen=True)
class _Secrets:
    """The secrets that decide the samples of a run, and the noise of one round."""

    samples: bytes
    noise: bytes = b""
    round: int = -1

    def to_json(self) -> str:
        return json.dumps({"samples": self.samples.hex(), "noise": self.noise.hex(), "round": self.round})

    @classmethod
    def of_file(cls, path: Path) -> "_Secrets":
        try:
            found = json.loads(path.read_text())
            return cls(bytes.fromhex(found["samples"]), bytes.fromhex(found["noise"]), int(found["round"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptDataError(f"{path} has no secrets of a private run: {error}", path=path) from error


class PrivateRounds:
    """The budget that a server spends and the noise that it adds; with ``by_clients`` the clients have added the noise.

    ``rate`` is the probability with which a client takes part, and ``expected`` the expected number of these clients.
    ``done`` is the number of rounds that a resumed run has completed, None for a new run.
    """

    def __init__(
        self,
        privacy: ClientPrivacy,
        *,
        rate: float,
        rounds: int,
        expected: float,
        by_clients: bool = False,
        folder: Path | None = None,
        done: int | None = None,
    ) -> None:
        self._privacy, self._expected = privacy, expected
        self.by_clients = by_clients
        self._rate = 1.0 if by_clients else rate
        self.budget = Budget(float(privacy.epsilon), float(privacy.delta))
        self.noise_multiplier = noise_of(privacy, self._rate, None if by_clients else rounds)
        is_kept = folder is not None and not by_clients and privacy.seed is None
        self._file = folder / KEY_FILE if is_kept and folder is not None else None
        self._secrets = _Secrets(self._new_secret("samples"))
        if done is not None and self._file is not None and self._file.exists():
            self._secrets = _Secrets.of_file(self._file)
        self.begin_round(done or 0)

    def _new_secret(self, what: str) -> bytes:
        seed = self._privacy.seed
        return secrets.token_bytes(32) if seed is None else hashlib.sha256(f"{what} of seed {seed}".encode()).digest()

    def begin_round(self, number: int) -> None:
        """Set the key for the noise of this round, the same as before a kill; delete older keys, lest they are stolen.

        A round without its key cannot be repeated with the same noise.
        """
        if self._secrets.round > number:
            raise ConfigError(
                f"the newest whole checkpoint has {number} rounds done, and round {self._secrets.round + 1} has begun: "
                "to repeat a round with other noise would tell more than is counted. Begin a run in another folder, "
                "with a budget from which you have taken what this one has spent.",
                name="folder",
                received=number,
                path=self._file,
            )
        if self._secrets.round < number:
            self._secrets = replace(self._secrets, noise=self._new_secret("noise"), round=number)
            if self._file is not None:
                write_durably(self._file, self._secrets.to_json(), mode=0o600)

    @property
    def salt(self) -> str:
        """The salt of the samples of clients, as secret as the noise."""
        return hashlib.sha256(b"sample" + self._secrets.samples).hexdigest()

    def require(self, rounds: int) -> None:
        """Raise `PrivacyBudgetError` if this number of further rounds would spend more than is left."""
        self.budget.require(NoisySteps(self.noise_multiplier, self._rate, rounds), what="rounds", hint=_HINT)

    def mean(self, sums: Arrays, turn: tuple[int, int]) -> dict[str, NDArray[np.float64]]:
        """Return the noisy mean of a round whose clipped updates have these sums.

        The noise depends on the sums as well. A round that is repeated after a kill has the same noise for the same
        updates. Other updates get another noise, so that a difference of results never is a difference of updates.
        """
        digest = hashlib.sha256(b"noise" + self._secrets.noise + repr(turn).encode())
        for name in sorted(sums):
            digest.update(sums[name].tobytes())
        generator = np.random.Generator(np.random.Philox(key=np.frombuffer(digest.digest()[:16], np.uint64)))
        deviation = self.noise_multiplier * self._privacy.clip
        found = {}
        for name in sorted(sums):
            noise = deviation * generator.standard_normal(sums[name].shape) if name.startswith(WEIGHTS) else 0.0
            found[name] = (sums[name] + noise) / self._expected
        return found

    def count(self) -> float:
        """Count a round; return the epsilon that is spent."""
        self.budget = self.budget.after(NoisySteps(self.noise_multiplier, self._rate, 1))
        return self.budget.spent_epsilon

    def end(self) -> None:
        """Forget the secrets: they are not needed any more, and with them the noise could be removed."""
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    def state(self) -> dict[str, Any]:
        return {**self.budget.state(), "noise_multiplier": self.noise_multiplier}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.budget = self.budget.restored(state)
        self.noise_multiplier = validation.number("noise_multiplier", state["noise_multiplier"], minimum=0.0)


class ClippedSum:
    """The sum of updates, each clipped to a norm; the sum of no updates is zero.

    Only trained weights count; all other arrays are zero in the sum.
    """

    def __init__(self, clip: float, like: Arrays) -> None:
        self._clip = clip
        self._like = like
        self._sums: dict[str, NDArray[Any]] = {name: np.zeros(array.shape) for name, array in like.items()}
        self.clipped = 0

    def add(self, update: Update, weight: float) -> None:
        del weight  # all count alike
        require_same_shapes(update.arrays, self._like)
        arrays, is_clipped = clipped(update.arrays, self._clip)
        self.clipped += is_clipped
        for name, array in arrays.items():
            self._sums[name] += array

    def result(self) -> Arrays:
        return self._sums


def clipped(arrays: Arrays, clip: float) -> tuple[dict[str, NDArray[np.float64]], bool]:
    """Return an update with its trained weights clipped to the norm and zeros elsewhere, and whether it was scaled."""
    wide = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
    trained = {name: one for name, one in wide.items() if name.startswith(WEIGHTS)}
    largest = max((float(np.abs(one).max(initial=0.0)) for one in trained.values()), default=0.0)
    unit = largest or 1.0  # squares of large numbers would be infinite
    norm = unit * math.sqrt(sum(float(np.square(one / unit).sum()) for one in trained.values()))
    factor = min(1.0, clip / norm) if norm else 1.0
    return {name: one * factor if name in trained else np.zeros_like(one) for name, one in wide.items()}, factor < 1.0
