"""The run that server and client derive independently from the application, the list of clients and the options."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tfdist.errors import ConfigError
from tfdist.federated.algorithms.algorithm import arrays_of_clients
from tfdist.federated.app import App
from tfdist.federated.client_privacy import ClientPrivacy, noise_of
from tfdist.federated.clients.client_states import ClientStates
from tfdist.federated.clients.local_training import LocalTrainer
from tfdist.federated.federated_session import FederatedSession, evaluation_of
from tfdist.federated.round_history import RoundRecord
from tfdist.federated.rounds.round_rules import RoundRules
from tfdist.federated.running.client_workers import LedTrainer, follow, workers_of
from tfdist.federated.running.federation_client import FederationClient
from tfdist.federated.running.federation_server import FederationServer
from tfdist.federated.running.secure_rounds import SecureMember, SecureRounds
from tfdist.federated.secure.fixed_point import FixedPoint
from tfdist.federated.secure.masking_plan import MaskingPlan
from tfdist.federated.secure.noisy_words import NoisyWords
from tfdist.federated.secure_sums import SecureSums, VectorLayout, code_of, largest_weight, plan_of
from tfdist.federated.session_files import run_id
from tfdist.federated.transport.client_hub import ClientHub
from tfdist.federated.transport.federation_keys import ClientKey, Federation, ServerKey
from tfdist.federated.transport.server_link import ServerLink

_ROOM = 16 << 20  # bytes of a message beside weights


@dataclass(frozen=True)
class Common:
    """The settings on which both sides agree without a message."""

    clients: tuple[str, ...]  # the names of all clients
    rules: RoundRules
    layout: VectorLayout  # the layout of an update as a vector
    sums: SecureSums | None  # the settings of secure aggregation; None without it
    code: FixedPoint | None  # the code of values as integers; None without secure aggregation
    # the noise of a client in a secure sum; None without privacy, and if the server adds the noise
    noise: Callable[[MaskingPlan], NoisyWords] | None
    largest: int  # the largest number of bytes of a message

    @property
    def masked_bytes(self) -> int | None:
        """The bytes of an update under masks; None without secure aggregation."""
        return None if self.sums is None else self.layout.words * self.sums.bits // 8


def common(
    app: App, trainer: LocalTrainer, federation: Federation, *, rounds: int, seed: int, sums: SecureSums | None
) -> Common:
    """Check everything that can be checked before the first round, and return the common settings."""
    clients = _names(app, federation)
    rules = app.rules(rounds=rounds, clients=len(clients), seed=seed, secure=sums is not None)
    arrays = arrays_of_clients(app.algorithm, app.algorithm.begin(trainer.local.weights()))
    most = min(rules.target + rules.spare, len(clients))
    layout = VectorLayout.of(arrays)
    code = noise = None
    if sums is not None:
        if trainer.codec.compresses:
            raise ConfigError(
                f"compression is {app.compression!r}, and under secure aggregation masked words are added up, which "
                "have all of their bits. Leave compression out.",
                name="compression",
                received=app.compression,
            )
        weight = largest_weight(app.algorithm, app.aggregator)
        if app.privacy is not None:
            sums = replace(sums, clip=app.privacy.clip)
        code = code_of(sums, largest_weight=weight, clients=most)
        plan = plan_of(sums, clients[:most], session=b"", length=layout.words)
        if app.privacy is not None:
            noise = functools.partial(_noise, app.privacy, sums, code)
            noise(plan)
    size = sum(array.nbytes for array in arrays.values())
    return Common(clients, rules, layout, sums, code, noise, 3 * size + _ROOM)


def _noise(privacy: ClientPrivacy, sums: SecureSums, code: FixedPoint, plan: MaskingPlan) -> NoisyWords:
    if sums.colluding is None:
        raise ConfigError(
            "colluding is None; the noise of clients that tell theirs to the server does not count, so with privacy it "
            "must be known how many may. Pass a number to SecureSums, such as 0.1.",
            name="colluding",
            received=None,
        )
    count = len(plan.clients)
    return NoisyWords(
        code=code,
        noise_multiplier=noise_of(privacy, 1.0, None),
        clients=count,
        honest=plan.threshold - math.ceil(sums.colluding * count),
        length=plan.length,
    )


def serve(
    app: App,
    key: ServerKey,
    federation: Federation,
    *,
    host: str,
    port: int,
    rounds: int,
    folder: Path,
    seed: int = 0,
    resume: bool = False,
    sums: SecureSums | None = None,
    told: Callable[[str], None] = lambda _: None,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
) -> None:
    """Run all rounds as the server, and keep the trained model in the folder."""
    trainer = app.trainer()
    same = common(app, trainer, federation, rounds=rounds, seed=seed, sums=sums)
    session = FederatedSession(
        app,
        same.rules,
        trainer.local.weights(),
        clients=len(same.clients),
        evaluate=evaluation_of(app, trainer),
        folder=folder,
        resume=resume,
        masked_bytes=same.masked_bytes,
    )
    secure = None
    if sums is not None and same.code is not None:
        secure = SecureRounds(sums, same.code, same.layout, federation.clients, folder)
    hub = ClientHub(
        host,
        port,
        key,
        federation,
        largest=same.largest,
        refused=lambda address, reason: told(f"refused {address}: {reason}"),
    )
    try:
        told(f"listening at {host}:{hub.port} for {len(same.clients)} clients")
        server = FederationServer(
            app, session, hub, same.clients, run=run_id(folder), secure=secure, told=told, on_round=on_round
        )
        server.run()
    finally:
        hub.close()
    model = app.make_model()
    trainer.local.set(session.state.weights)
    model.set_weights(trainer.model.get_weights())
    model.save(folder / "model.keras")


def take_part(
    app: App,
    key: ClientKey,
    federation: Federation,
    *,
    host: str,
    port: int,
    folder: Path,
    sums: SecureSums | None = None,
    wait_seconds: float = 600.0,
    told: Callable[[str], None] = lambda _: None,
) -> str:
    """Answer a server until its run ends; return the run's error, "" if there is none.

    If a client has several workers, the chief answers, and the others train and evaluate along with it.
    """
    trainer = app.trainer()
    workers = workers_of(trainer)
    same = common(app, trainer, federation, rounds=1, seed=0, sums=sums)
    if workers is not None and not workers.is_chief:
        follow(trainer, app.data_of(key.name), workers)
        return ""
    secure = None
    if sums is not None and same.code is not None:
        parts = (sums, same.code, same.layout, key.name, key.private, federation.clients, folder)
        secure = SecureMember(*parts, noise=same.noise)
    led = None if workers is None else LedTrainer(trainer, workers)
    states = ClientStates(folder, durable=True)
    client = FederationClient(app, led or trainer, key.name, states, secure=secure, told=told)
    link = ServerLink(host, port, key, federation, largest=same.largest, wait_seconds=wait_seconds, told=told)
    try:
        error = client.run(link)
        if led is not None:  # where the chief fails, its launcher ends the others
            led.end()
        return error
    finally:
        link.close()


def _names(app: App, federation: Federation) -> tuple[str, ...]:
    """Return the clients of the application; if it names none, the clients on the list."""
    is_unnamed = app.clients is None and callable(app.client_data)
    names = tuple(sorted(federation.clients)) if is_unnamed else app.names()
    unknown = [name for name in names if name not in federation.clients]
    if unknown or not names:
        raise ConfigError(
            f"{len(unknown)} of {len(names)} clients of the application have no key on the list, such as "
            f"{', '.join(unknown[:3]) or '-'}. Make keys for them: tfdist federated keys",
            name="clients",
            received=unknown[:3],
        )
    return names
