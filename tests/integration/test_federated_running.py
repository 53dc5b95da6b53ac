"""Federated runs over a transport: as the simulation to the bit, and through kills, losses and secure sums."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.federate import DATA, NAMES, SUMS, Federate, Killed, distance, make_model, simulated, trainer_of
from tests.refusals import refused
from tfdist.compression import TopK
from tfdist.errors import ConfigError, DeadlineError, DisagreementError
from tfdist.federated import App, ClientPrivacy, FedAvg, Participation, Scaffold, WholeRule
from tfdist.federated.clients.local_training import LocalTrainer
from tfdist.federated.federated_session import FederatedSession
from tfdist.federated.rounds import Joined, Trained
from tfdist.federated.running.client_workers import workers_of
from tfdist.federated.running.federation_server import FederationServer
from tfdist.federated.secure_sums import SecureSums
from tfdist.federated.session_files import SessionFiles
from tfdist.federated.transport.client_hub import Came, Event, Gone, Said
from tfdist.privacy import PrivacyBudgetError


@pytest.mark.parametrize("algorithm", [None, Scaffold(epochs=2, batch_size=4)], ids=["FedAvg", "Scaffold"])
def test_a_run_is_the_simulation_bit_for_bit(tmp_path: Path, algorithm: Any) -> None:
    options = {"participation": Participation(fraction=0.75, evaluate_on="clients")}
    expected = simulated(algorithm, **options)
    for _ in range(2):  # the second time, clients have the folders of another run
        assert distance(Federate(tmp_path, algorithm, **options).run(), expected) == 0
        shutil.rmtree(tmp_path / "server")


def test_a_run_that_is_killed_at_any_event_is_the_same(tmp_path: Path) -> None:
    whole = Federate(tmp_path / "whole")
    expected = whole.run()
    for event in range(1, whole.taken + 1):
        found = Federate(tmp_path / str(event)).run_killed_at(event)
        assert distance(found, expected) == 0, f"killed at event {event}"


def test_a_run_of_bfloat16_weights_resumes(tmp_path: Path) -> None:
    app = App(make_model, DATA, FedAvg())
    weights = {"weights/000.kernel": np.full(3, 1.5, "bfloat16")}
    first, again = (
        FederatedSession(app, app.rules(rounds=1, clients=4), weights, clients=4, folder=tmp_path, resume=resume)
        for resume in (False, True)
    )
    (name,) = weights
    assert again.state.weights[name].dtype == first.state.weights[name].dtype == weights[name].dtype
    assert again.state.weights[name].tobytes() == weights[name].tobytes()


def test_secure_sums_differ_by_their_rounding_alone(tmp_path: Path) -> None:
    found = Federate(tmp_path, sums=SUMS).run()
    step = SUMS.clip / 2**19
    assert 0 < distance(found, simulated()) < 4 * step


def test_the_bytes_of_masked_updates_are_counted(tmp_path: Path) -> None:
    arrived = list[int]()

    def change(client: str, answer: dict[str, Any]) -> Any:
        if answer["what"] == "train":
            arrived.append(answer["answer"].nbytes)
        return answer

    for bits in (32, 64):
        one = Federate(tmp_path / str(bits), sums=SecureSums(clip=0.5, value_bits=20, bits=bits), rounds=1)  # type: ignore[arg-type]
        one.change = change
        one.run()
        assert [record.bytes for record in one.session.records] == [sum(arrived)] == [4 * (22 + 1) * bits // 8]
        arrived.clear()


def test_a_secure_run_that_is_killed_at_any_event_is_the_same(tmp_path: Path) -> None:
    """Sums are exact, so the attempt in which a round succeeds changes nothing."""
    options = {"sums": SecureSums(clip=0.02, value_bits=20), "participation": Participation(evaluate_on="clients")}
    whole = Federate(tmp_path / "whole", rounds=1, **options)  # type: ignore[arg-type]
    expected, clipped = whole.run(), whole.session.records[0].clipped_values
    assert clipped
    for event in range(1, whole.taken + 1):
        killed = Federate(tmp_path / str(event), rounds=1, **options)  # type: ignore[arg-type]
        assert distance(killed.run_killed_at(event), expected) == 0, f"killed at event {event}"
        assert killed.session.records[0].clipped_values == clipped, f"killed at event {event}"


@pytest.mark.parametrize("what", ["keys", "shares", "train", "confirm", "reveal"])
def test_a_client_that_is_lost_in_a_secure_round_is_left_out(tmp_path: Path, what: str) -> None:
    """Vienna is gone from this question on."""
    one = Federate(tmp_path, sums=SecureSums(clip=0.5, value_bits=20, threshold=0.5))

    def change(client: str, answer: dict[str, Any]) -> Any:
        return Gone(client, "cut") if client == "vienna" and answer["what"] == what else answer

    one.change = change
    one.run()
    used = 4 if what in ("confirm", "reveal") else 3
    assert [record.used for record in one.session.records] == [used, 3], one.lines


def test_weights_of_a_round_are_not_kept_for_a_client_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers, run = list[FederationServer](), FederationServer.run

    def noted(server: FederationServer) -> None:
        servers.append(server)
        run(server)

    monkeypatch.setattr(FederationServer, "run", noted)
    one = Federate(tmp_path)
    one.change = lambda client, answer: Gone(client, "cut") if client == "vienna" else answer
    one.run()
    assert [record.used for record in one.session.records] == [3, 3]
    assert not servers[0]._asked


def test_a_client_that_lies_is_left_out(tmp_path: Path) -> None:
    """Each answer of rome is wrong in another way; the others' training goes on."""
    for change in (
        lambda answer: {**answer, "examples": 0},
        lambda answer: {**answer, "examples": "7"},
        lambda answer: {**answer, "examples": 10**400},
        lambda answer: {**answer, "metrics": {"loss": 10**400}},
        lambda answer: {**answer, "arrays": {}},
        lambda answer: {**answer, "arrays": [1]},
        lambda answer: {**answer, "arrays": {name: array[..., :0] for name, array in answer["arrays"].items()}},
        lambda answer: {**answer, "arrays": {name: array.astype(int) for name, array in answer["arrays"].items()}},
        lambda answer: {**answer, "metrics": {"loss": "low"}},
        lambda answer: {**answer, "round": np.zeros(2)},
        lambda answer: {**answer, "kind": np.zeros(2)},
        lambda answer: {"kind": "failed", "what": "train", "round": answer["round"], "attempt": answer["attempt"]},
        lambda answer: {**answer, "kind": "failed", "reason": "\ud800\x1b[2J"},
    ):
        one = Federate(tmp_path / str(id(change)))
        one.change = lambda client, answer, change=change: change(answer) if client == "rome" else answer  # type: ignore[misc]
        one.run()
        assert [record.used for record in one.session.records] == [3, 3]
        assert any("rome" in line for line in one.lines)
        assert all(line.isprintable() for line in one.lines)


def test_a_client_that_says_something_all_the_time_postpones_no_deadline(tmp_path: Path) -> None:
    class Talkative(Federate):
        def take(self, timeout_seconds: float | None) -> Event | None:
            if not self.events:
                self.now += 1
                assert self.now < 5000, "the deadline does not pass"
                self.events.append(Said("rome", {"what": "nothing"}))
            return self.events.popleft()

    one = Talkative(tmp_path, rounds=1)
    one.change = lambda client, answer: {"what": "nothing"} if client == "rome" else answer
    one.run()
    assert [record.used for record in one.session.records] == [3]


def test_a_client_that_starts_again_in_a_secure_round_holds_nobody_up(tmp_path: Path) -> None:
    """It has lost its masks, and says so: the others finish the sum, and no deadline passes."""
    one = Federate(tmp_path, sums=SecureSums(clip=0.5, value_bits=20, threshold=0.5), rounds=1)

    def change(client: str, answer: dict[str, Any]) -> dict[str, Any]:
        if client == "vienna" and answer["what"] == "train":
            one.clients["vienna"] = one.client("vienna")
        return answer

    one.change = change
    one.run()
    assert one.now == 0
    assert [record.used for record in one.session.records] == [4]


def test_a_vector_of_a_client_that_is_lost_before_it_is_noted_ends_in_another_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is killed after it has added vienna's vector, which never comes back: nothing of the sum is told."""
    one = Federate(tmp_path, sums=SecureSums(clip=0.5, value_bits=20, threshold=0.5), rounds=1)
    write = SessionFiles.write

    def killed(files: SessionFiles, event: Any, *rest: Any) -> None:
        if isinstance(event, Trained) and event.client == "vienna":
            raise Killed
        write(files, event, *rest)

    monkeypatch.setattr(SessionFiles, "write", killed)
    with pytest.raises(Killed):
        one.run()
    monkeypatch.undo()
    one.change = lambda client, answer: Gone(client, "lost") if client == "vienna" else answer
    one.run(resume=True)
    assert [(record.used, record.attempt) for record in one.session.records] == [(3, 1)]
    assert not any("revealed already" in line for line in one.lines)


def test_a_secure_update_that_is_not_finite_is_left_out_and_ends_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Federate(tmp_path, sums=SecureSums(clip=0.5, value_bits=20, threshold=0.5))
    train = LocalTrainer.train

    def diverged(trainer: LocalTrainer, task: Any, *rest: Any) -> Any:
        update, state = train(trainer, task, *rest)
        if (task.client, task.round) == ("rome", 0):
            update = replace(update, arrays={name: array * np.nan for name, array in update.arrays.items()})
        return update, state

    monkeypatch.setattr(LocalTrainer, "train", diverged)
    one.run()
    assert [record.used for record in one.session.records] == [3, 4]


def test_whose_vectors_are_in_a_sum_is_on_the_disk_before_it_is_revealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients reveal one sum of a round: after a loss of power, the server must continue that very one."""
    done, write, sync = list[str](), SessionFiles.write, SessionFiles.sync

    def written(files: SessionFiles, event: Any, *rest: Any) -> None:
        done.append(type(event).__name__)
        write(files, event, *rest)

    def synced(files: SessionFiles) -> None:
        done.append("on the disk")
        sync(files)

    def answered(_: str, answer: dict[str, Any]) -> dict[str, Any]:
        done.append(answer["what"])
        return answer

    monkeypatch.setattr(SessionFiles, "write", written)
    monkeypatch.setattr(SessionFiles, "sync", synced)
    one = Federate(tmp_path, sums=SUMS, rounds=1)
    one.change = answered
    one.run()
    end = done.index("confirm")
    assert done[end - 1] == "on the disk"
    assert done[:end].count("Trained") == len(NAMES)


def test_too_few_clients_for_a_secure_sum_end_the_run(tmp_path: Path) -> None:
    one = Federate(tmp_path, sums=SUMS)
    one.change = lambda client, answer: Gone(client, "cut") if answer["what"] == "confirm" else answer
    with refused(DeadlineError):
        one.run()
    assert not one.session.records


def test_clients_that_come_back_reveal_their_shares(tmp_path: Path) -> None:
    one, cut = Federate(tmp_path, sums=SUMS, rounds=1), set[str]()

    def change(client: str, answer: dict[str, Any]) -> Any:
        if answer["what"] != "reveal" or client in cut or client in NAMES[:2]:
            return answer
        cut.add(client)
        if len(cut) == 2:
            one.events.extend([Gone(NAMES[2], "cut"), Gone(NAMES[3], "cut"), Came(NAMES[2]), Came(NAMES[3])])
        return None

    one.change = change
    one.run()
    assert [(record.used, record.attempt) for record in one.session.records] == [(4, 0)]


def test_a_round_whose_sum_stays_hidden_is_left_out_as_clients_reveal_no_other_one(tmp_path: Path) -> None:
    one = Federate(tmp_path, sums=SUMS)

    def change(client: str, answer: dict[str, Any]) -> Any:
        if answer["what"] == "confirm" and not one.session.records and client in NAMES[:2]:
            one.clients[client] = one.client(client)  # it has lost its masks
        return answer

    one.change = change
    one.run()
    assert [(record.used, record.attempt) for record in one.session.records] == [(0, 0), (4, 0)]


def test_clients_that_come_back_while_others_evaluate_complete_no_hidden_sum(tmp_path: Path) -> None:
    one = Federate(tmp_path, sums=SUMS, rounds=1, participation=Participation(evaluate_on="clients"))

    def change(client: str, answer: dict[str, Any]) -> Any:
        if answer["what"] == "reveal" and client in NAMES[2:] and not one.now:
            return Gone(client, "cut")
        if answer["what"] == "evaluate" and client == NAMES[0]:
            one.events.extend([Came(NAMES[2]), Came(NAMES[3])])
            return None
        return answer

    one.change = change
    one.run()
    assert [(record.used, record.attempt) for record in one.session.records] == [(0, 0)]


def test_a_second_sum_of_a_round_is_refused_by_clients(tmp_path: Path) -> None:
    one = Federate(tmp_path, sums=SUMS)
    one.run()
    keys = {"kind": "ask", "run": "a run", "round": 1, "attempt": 9, "what": "keys", "clients": list(NAMES)}
    for client in (one.clients["rome"], one.client("rome")):  # also one that was started again
        assert client.answer({**keys, "session": b"another session!"})["kind"] == "failed"
        assert client.answer({**keys, "session": b"another session?", "round": 2})["kind"] == "answer"


def test_a_client_takes_part_in_one_run_only(tmp_path: Path) -> None:
    class Link:
        def __init__(self) -> None:
            self.asked = [{"kind": "ask", "run": run, "round": 0, "attempt": 0, "what": "?"} for run in ("a", "b")]

        def take(self, timeout_seconds: float | None = None) -> dict[str, Any]:
            return self.asked.pop(0)

        def send(self, message: dict[str, Any]) -> None:
            assert message["kind"] == "failed"

    with refused(DisagreementError, name="rome", received="b"):
        Federate(tmp_path).clients["rome"].run(Link())  # type: ignore[arg-type]


def test_a_compressed_run_is_the_simulation_bit_for_bit(tmp_path: Path) -> None:
    """Half of the clients are left out of each round, so some of their memories are old."""
    options = {"compression": TopK(density=0.2), "participation": Participation(fraction=0.5)}
    one = Federate(tmp_path, ALIKE, **options)
    found = one.run()
    assert distance(found, simulated(ALIKE, **options)) == 0
    assert distance(found, simulated(ALIKE, participation=options["participation"])) > 0
    sent = 4 * 8 + 4 + 4 * (3 + 1)  # 4 of 18 numbers with their places, a check, and biases
    assert [record.bytes for record in one.session.records] == [2 * sent] * 2


# --- privacy ----------------------------------------------------------------------------------------------------------
ALIKE = FedAvg(epochs=2, batch_size=4, weighting="uniform")


def test_a_private_run_is_the_simulation_through_a_kill(tmp_path: Path) -> None:
    """Samples and noise are those of before the kill: two noises of one sum would tell more than was counted."""
    options = {
        "privacy": ClientPrivacy(epsilon=20, delta=1e-2, clip=0.1, seed=3),
        "participation": Participation(fraction=0.5),
    }
    expected = simulated(ALIKE, **options)
    whole = Federate(tmp_path / "whole", ALIKE, **options)
    assert distance(whole.run(), expected) == 0
    spent = [(record.epsilon, record.clipped_updates) for record in whole.session.records]
    assert 0 < spent[0][0] < spent[1][0] <= 20  # type: ignore[operator]
    assert sum(count for _, count in spent) > 0  # type: ignore[misc]
    for event in range(5, whole.taken + 1, 3):
        killed = Federate(tmp_path / str(event), ALIKE, **options)
        assert distance(killed.run_killed_at(event), expected) == 0, f"killed at event {event}"
        assert [(record.epsilon, record.clipped_updates) for record in killed.session.records] == spent


def test_a_private_run_has_its_own_secret_which_is_gone_at_its_end(tmp_path: Path) -> None:
    options = {"privacy": ClientPrivacy(epsilon=20, delta=1e-2, clip=0.1)}
    whole = Federate(tmp_path / "1", ALIKE, **options)
    whole.kill_at = 8
    with pytest.raises(Killed):
        whole.run()
    assert (tmp_path / "1" / "server" / "privacy_key").stat().st_mode & 0o777 == 0o600
    found = whole.run(resume=True)
    assert not (tmp_path / "1" / "server" / "privacy_key").exists()
    whole.run(resume=True)  # and it does not come back
    assert not (tmp_path / "1" / "server" / "privacy_key").exists()
    assert distance(found, Federate(tmp_path / "2", ALIKE, **options).run()) > 0
    with refused(PrivacyBudgetError, name="epsilon"):
        Federate(tmp_path / "1", ALIKE, rounds=3, **options).run(resume=True)


def test_clients_add_the_noise_of_a_secure_sum_and_keep_to_the_budget(tmp_path: Path) -> None:
    sums = SecureSums(value_bits=20, threshold=0.5)
    privacy = ClientPrivacy(epsilon=50, delta=1e-2, noise_multiplier=0.5)
    runs = [Federate(tmp_path / str(one), ALIKE, sums, rounds=1, privacy=privacy) for one in range(2)]
    apart = [np.concatenate([one.ravel() for one in run.run()]) for run in runs]
    # 3 of 4 clients are needed, and one of them may tell its noise: two parts are the noise, and the mean is over 4
    deviation = 0.5 * np.sqrt(4 / 2) / 4
    assert 0.5 * deviation < np.std(apart[0] - apart[1]) / np.sqrt(2) < 1.5 * deviation
    epsilon = runs[0].session.records[0].epsilon
    assert epsilon is not None
    assert runs[0].session.records[0].clipped_values is None, "an exact count beside the noise"
    privacy = ClientPrivacy(epsilon=epsilon + 0.1, delta=1e-2, noise_multiplier=0.5)
    with refused(PrivacyBudgetError, name="epsilon"):
        Federate(tmp_path / "server", ALIKE, sums, rounds=2, privacy=privacy).run()
    client = Federate(tmp_path / "client", ALIKE, sums, rounds=1, privacy=privacy).clients["rome"]
    asked = {"what": "train", "round": 1, "attempt": 0, "secure": {}, "seed": 1}
    assert "more rounds would spend" in client.answer(asked)["reason"]


class First(WholeRule):
    def aggregate(self, updates: Any, weights: Any) -> Any:
        return updates[0].arrays


@pytest.mark.parametrize(
    ("algorithm", "options", "name"),
    [
        (FedAvg(), {}, "most_examples"),
        (FedAvg(most_examples=7), {"aggregator": First()}, "aggregator"),
        (FedAvg(most_examples=10_000), {}, "value_bits"),
        (FedAvg(most_examples=7), {"participation": Participation(fraction=0.5)}, "clients"),
        (ALIKE, {"privacy": ClientPrivacy(epsilon=3, delta=1e-2)}, "rounds"),
        (ALIKE, {"compression": "qsgd"}, "compression"),
        (ALIKE, {"privacy": ClientPrivacy(epsilon=3, delta=1e-2, noise_multiplier=1000)}, "value_bits"),
    ],
)
def test_what_no_secure_sum_can_have_is_refused_before_the_first_round(
    tmp_path: Path, algorithm: Any, options: Any, name: str
) -> None:
    with refused(ConfigError, name=name):
        Federate(tmp_path, algorithm, SUMS, **options)


def test_an_update_is_on_the_disk_before_it_has_an_effect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced, really = list[str](), os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    files = SessionFiles(tmp_path, journals=True)
    files.write(Joined("a"), None, {})
    del synced[:]
    files.write(Trained(0, 0, "a", 3), {"w": np.ones(2, np.float32)}, {})
    assert [Path(path).parent.name for path in synced if not Path(path).is_dir()] == ["updates", tmp_path.name]
    del synced[:]
    files.write(Joined("b"), None, {})
    assert not synced
    files.sync()
    assert [Path(path).name for path in synced] == ["journal-0.jsonl"]
    with (tmp_path / "journal-0.jsonl").open("ab") as file:
        file.write(b"half a line")  # of a process that was killed
    assert [type(event) for event, _, _ in SessionFiles(tmp_path, journals=True).replayed()] == [
        Joined,
        Trained,
        Joined,
    ]


def test_processes_that_share_no_strategy_are_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("TFDIST_WORKERS", "a:1,b:1"), ("TFDIST_WORKER_INDEX", "1")):
        monkeypatch.setenv(name, value)
    with refused(ConfigError, name="workers", received=2):
        workers_of(trainer_of(FedAvg(epochs=2, batch_size=4, most_examples=7)))
