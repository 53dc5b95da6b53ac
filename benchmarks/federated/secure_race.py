"""Secure sums, compared with SecAgg+ of Flower, which has an environment of its own, and with the plain mean."""

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.peer_environment import PeerEnvironment
from tfdist.bench.suite import Report, Suite, Table, Told, in_turns, option, quartiles, ratio, untold
from tfdist.cli.bench.suite_command import suite_command
from tfdist.federated import Mean, SecureSums, Update
from tfdist.federated.secure.masking_client import MaskingClient, Phase
from tfdist.federated.secure.masking_server import MaskingServer
from tfdist.federated.secure_sums import code_of, plan_of
from tfdist.planner import machine

__all__ = ["SecureBench", "SecureReport", "command"]

ARMS = ("tfdist", "Flower SecAgg+", "plain mean")
_FLOWER = "flwr==1.42.0"
_METHODS = {
    Phase.ADVERTISE: "advertise",
    Phase.SHARE: "share",
    Phase.UPLOAD: "upload",
    Phase.CONFIRM: "confirm",
    Phase.REVEAL: "reveal",
}
_WEIGHT = 10  # of each client


@dataclass(frozen=True, kw_only=True)
class SecureBench(Suite):
    """Sum the updates of clients in one process, without a network, in ways that take turns:

    \b
    tfdist           SecureSums(): as many neighbours as the number of clients needs
    Flower SecAgg+   with the same number of neighbours, and the same threshold
    plain mean       of updates that are not masked: the server alone

    Figures are CPU time. Flower is installed into a temporary environment, which needs a package index.
    """

    clients: int = option(100, "How many; none is lost.", minimum=4)
    length: int = option(1_000_000, "Weights of an update.")
    rounds: int = option(3, "Measurements of each way.")

    def run(self, told: Told = untold) -> "SecureReport":
        with machine.observed() as about, tempfile.TemporaryDirectory(prefix="tfdist-flower-") as folder:
            told(f"installing {_FLOWER}")
            flower = PeerEnvironment(Path(folder), _FLOWER, side=Path(__file__).with_name("flower_side.py"))
            names = [f"client-{number:04d}" for number in range(self.clients)]
            plan = plan_of(SecureSums(), names, session=bytes(32), length=self.length)
            vector = np.random.default_rng(0).normal(scale=0.01, size=self.length).astype(np.float32)

            def measure(arm: str, number: int) -> dict[str, float]:
                if arm == "tfdist":
                    return masked_sum(names, vector)
                if arm == "plain mean":
                    return plain_mean(self.clients, vector)
                found: dict[str, float] = flower.ask(
                    "secure",
                    clients=self.clients,
                    length=self.length,
                    neighbours=plan.degree.neighbours,
                    threshold=plan.degree.shares,
                )
                return found

            measured = in_turns(ARMS, measure, count=self.rounds, told=told)
        return SecureReport(setup=self, machine=about, measured=measured, neighbours=plan.degree.neighbours)


def masked_sum(names: Sequence[str], vector: Any) -> dict[str, float]:
    """One secure sum: CPU seconds of a client and of the server, and the largest error of the mean."""
    sums = SecureSums(clip=1.0)
    keys = {name: Ed25519PrivateKey.generate() for name in names}
    roster = {name: key.public_key().public_bytes_raw() for name, key in keys.items()}
    code = code_of(sums, largest_weight=_WEIGHT, clients=len(names))
    plan = plan_of(sums, names, session=bytes(32), length=len(vector))
    begun, of_clients = time.process_time(), 0.0
    server = MaskingServer(plan, roster)
    clients = {name: MaskingClient(plan, name, keys[name], roster) for name in names}
    requests: dict[str, dict[str, Any]] = {name: {} for name in names}
    while server.phase != Phase.DONE:
        phase = server.phase
        for name in sorted(server.awaited):
            before, arguments = time.process_time(), dict(requests[name])
            if phase == Phase.UPLOAD:
                arguments["words"], _ = code.encode(vector, _WEIGHT)
            answer = getattr(clients[name], _METHODS[phase])(**arguments)
            of_clients += time.process_time() - before
            server.receive(name, phase, answer)
        requests = server.advance()
    found = code.decode(server.result()) / (_WEIGHT * len(names))
    whole = time.process_time() - begun
    error = float(np.abs(found - vector).max())
    return {"client": of_clients / len(names), "server": whole - of_clients, "error": error}


def plain_mean(clients: int, vector: Any) -> dict[str, float]:
    """The same for the plain mean, for which clients have no work."""
    begun = time.process_time()
    aggregation = Mean().start()
    for _ in range(clients):
        aggregation.add(Update({"weights": vector}, _WEIGHT), _WEIGHT)
    error = float(np.abs(aggregation.result()["weights"] - vector).max())
    return {"client": 0.0, "server": time.process_time() - begun, "error": error}


@dataclass(frozen=True, kw_only=True)
class SecureReport(Report):
    """Every way, and its sums."""

    setup: SecureBench
    measured: Mapping[str, Sequence[Mapping[str, float]]]
    neighbours: int

    def seconds(self, arm: str, part: str) -> list[float]:
        """Return the CPU seconds of all sums of a way: of one client, of the server, or of all together."""
        if part != "all":
            return [one[part] for one in self.measured[arm]]
        return [self.setup.clients * one["client"] + one["server"] for one in self.measured[arm]]

    def derived(self) -> dict[str, Any]:
        ours, flower, plain = ARMS
        return {
            "against_flower": ratio(self.seconds(flower, "all"), self.seconds(ours, "all")),
            "client_against_flower": ratio(self.seconds(flower, "client"), self.seconds(ours, "client")),
            "server_against_plain": ratio(self.seconds(ours, "server"), self.seconds(plain, "server")),
        }

    def shown(self) -> Iterator[Table | str]:
        rows = [
            [
                arm,
                *(str(quartiles(self.seconds(arm, part))) for part in ("client", "server", "all")),
                f"{max(one['error'] for one in self.measured[arm]):.1e}",
            ]
            for arm in ARMS
        ]
        yield Table(("CPU seconds", "a client", "the server", "all", "largest error"), rows)
        found = self.derived()
        yield (
            f"{self.setup.clients} clients with {self.neighbours} neighbours each. Flower's processor time over "
            f"tfdist's: {found['against_flower']}, of a client {found['client_against_flower']}. The server's over the "
            f"plain mean's: {found['server_against_plain']}."
        )
        yield self.ran_on()


command = suite_command(
    "secure",
    SecureBench,
    examples={
        "python -m benchmarks secure": "minutes on 2 cores",
        "python -m benchmarks secure --clients 20 --length 100000": "fewer and smaller updates",
        "python -m benchmarks secure --clients 6 --length 1000 --rounds 1": "whether it runs",
    },
    page="federated-security",
)
