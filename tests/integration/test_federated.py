"""Federated training in one process: what algorithms and graphs are equal to, and runs that are killed."""

import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

import tfdist
from tests.integration.forks import Forks
from tests.refusals import refused
from tfdist.compression import TopK
from tfdist.errors import ConfigError, ConfigTypeError, DeadlineError
from tfdist.federated import (
    App,
    FedAvg,
    FedOpt,
    FedProx,
    Liars,
    Mean,
    Median,
    NormClipping,
    Participation,
    Scaffold,
    WholeRule,
    simulate,
    split_dirichlet,
)
from tfdist.federated.clients import client_data
from tfdist.federated.clients.client_data import local_data
from tfdist.federated.clients.client_states import ClientStates
from tfdist.federated.clients.local_training import TrainTask
from tfdist.federated.federated_session import FederatedSession
from tfdist.federated.round_history import shown
from tfdist.federated.rounds import Configure, Configured, Evaluate, Evaluated, Joined, Train, Trained

RANDOM = np.random.default_rng(5)
X = RANDOM.normal(size=(120, 6)).astype(np.float32)
Y = (X @ RANDOM.normal(size=(6, 3))).argmax(1)


def classifier(**options: Any) -> keras.Model:
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="tanh", name="body"),
            *options.pop("between", []),
            keras.layers.Dense(3, name="head"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(options.pop("optimizer", keras.optimizers.SGD(0.1)), loss, metrics=["accuracy"], **options)
    return model


def batches() -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(16)


def noisy() -> keras.Model:
    between = [keras.layers.BatchNormalization(), keras.layers.Dropout(0.3)]
    return classifier(between=between, optimizer=keras.optimizers.Adam(0.01))


def quadratic(learning_rate: float = 0.1) -> keras.Model:
    """A weight w, whose loss on a client with the data (a, b) is a (w - b)^2 / 2."""
    a, b = keras.Input((1,)), keras.Input((1,))
    weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")
    distance = weight(keras.ops.ones_like(a)) - b
    model = keras.Model([a, b], keras.ops.sqrt(a / 2) * distance)
    model.compile(keras.optimizers.SGD(learning_rate), lambda y, found: keras.ops.square(found))
    return model


def parts(clients: int = 4) -> list[Any]:
    return split_dirichlet((X, Y), Y, clients, alpha=0.5, seed=2)


def weights_of(model: keras.Model) -> list[NDArray[Any]]:
    return list(model.get_weights())


def distance(one: list[NDArray[Any]], other: list[NDArray[Any]]) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(one, other, strict=True))


def run(algorithm: Any, make_model: Callable[[], keras.Model] = classifier, rounds: int = 3, **options: Any) -> Any:
    how = {name: options.pop(name) for name in ("folder", "processes", "liars") if name in options}
    return simulate(App(make_model, options.pop("data", parts()), algorithm, **options), rounds=rounds, seed=4, **how)


# --- identities -------------------------------------------------------------------------------------------------------
def test_one_full_batch_step_of_all_clients_is_sgd_on_the_union() -> None:
    found = run(FedAvg(batch_size=None), rounds=5).model
    union = classifier()
    for _ in range(5):
        union.train_on_batch(X, Y)
    assert distance(weights_of(found), weights_of(union)) < 1e-6


def test_fedprox_with_mu_0_is_fedavg_bit_for_bit_and_with_mu_stays_nearer() -> None:
    options = {"epochs": 3, "batch_size": 8}
    plain, zero, near = (
        weights_of(run(one).model) for one in (FedAvg(**options), FedProx(mu=0, **options), FedProx(mu=2.0, **options))
    )
    start = weights_of(classifier())
    assert distance(plain, zero) == 0
    assert 0 < distance(near, start) < distance(plain, start)


def test_scaffold_reaches_the_optimum_where_fedavg_has_its_known_bias() -> None:
    curvatures, centres = [1.0, 4.0], [1.0, -1.0]
    data = [
        ([np.full((1, 1), a), np.full((1, 1), b)], np.zeros((1, 1))) for a, b in zip(curvatures, centres, strict=True)
    ]
    optimum = np.average(centres, weights=curvatures)
    steps, rate = 10, 0.1
    shrink = [1 - (1 - rate * a) ** steps for a in curvatures]  # of a client's distance, in a round
    biased = np.average(centres, weights=shrink)
    averaged = run(FedAvg(epochs=steps), quadratic, rounds=60, data=data).model
    corrected = run(Scaffold(epochs=steps), quadratic, rounds=60, data=data).model
    assert abs(biased - optimum) > 0.1
    assert weights_of(averaged)[0].item() == pytest.approx(biased, abs=1e-5)
    assert weights_of(corrected)[0].item() == pytest.approx(optimum, abs=1e-5)


def test_the_control_of_the_server_is_the_mean_of_the_clients(tmp_path: Path) -> None:
    for fraction in (1.0, 0.5):
        folder = tmp_path / str(fraction)
        app = App(classifier, parts(), Scaffold(epochs=2, batch_size=8), participation=Participation(fraction=fraction))
        simulate(app, rounds=4, folder=folder)
        found = tfdist.checkpoint.Store(folder / "checkpoints").newest()
        assert found is not None
        states = ClientStates(folder / "clients")
        turns = {name: (turn[0], turn[1]) for name, turn in found.state["counted"].items()}
        for name, mean in found.arrays.items():
            if name.startswith("slot:control/"):
                own = [
                    states.load(one, turns.get(one)).get(name.removeprefix("slot:"), 0.0 * mean) for one in app.names()
                ]
                assert np.abs(np.mean(own, axis=0) - mean).max() < 1e-9


@pytest.mark.parametrize("optimizer", ["adam", "yogi", "adagrad"])
def test_server_optimizers_follow_their_formulas(optimizer: Any) -> None:
    algorithm = FedOpt(optimizer=optimizer, server_learning_rate=0.05, beta_1=0.8, beta_2=0.9, tau=0.01)
    weights = {"weights/w": np.array([1.0, -2.0])}
    state, m, v, w = algorithm.begin(weights), np.zeros(2), np.full(2, 0.01**2), weights["weights/w"]
    for change in RANDOM.normal(size=(5, 2)):
        state = algorithm.update(state, {"weights/w": change}, part=1.0)
        m = 0.8 * m + 0.2 * change
        v = {
            "adam": 0.9 * v + 0.1 * change**2,
            "yogi": v - 0.1 * change**2 * np.sign(v - change**2),
            "adagrad": v + change**2,
        }[optimizer]
        w = w + 0.05 * m / (np.sqrt(v) + 0.01)
    assert np.abs(state.weights["weights/w"] - w).max() < 1e-12


def test_server_momentum_adds_up_changes() -> None:
    algorithm = FedAvg(server_momentum=0.9, server_learning_rate=0.5)
    state = algorithm.begin({"weights/w": np.zeros(1), "statistics/s": np.zeros(1)})
    for _ in range(3):
        state = algorithm.update(state, {"weights/w": np.ones(1), "statistics/s": np.ones(1)}, part=1.0)
    assert state.weights["weights/w"].item() == pytest.approx(0.5 * (1 + 1.9 + 2.71))
    assert state.weights["statistics/s"].item() == 3


# --- a client's training ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make_model", "algorithm"),
    [(classifier, FedProx(mu=0.5, batch_size=7)), (noisy, FedAvg(epochs=2, batch_size=8))],
    ids=["FedProx", "Adam, dropout and statistics"],
)
def test_the_graph_of_a_training_is_fit(algorithm: Any, make_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    by_graph = App(make_model, parts(), algorithm).trainer()
    by_fit = App(make_model, parts(), algorithm).trainer()
    monkeypatch.setattr(by_fit, "_has_graph", lambda: False)
    for client, data in enumerate(parts()):
        task = TrainTask(0, 0, str(client), seed=client, arrays=by_graph.local.weights())
        one, _ = by_graph.train(task, local_data(data, "x"), {})
        other, _ = by_fit.train(task, local_data(data, "x"), {})
        assert max(np.abs(one.arrays[name] - other.arrays[name]).max() for name in one.arrays) < 1e-6
        assert one.metrics == pytest.approx(dict(other.metrics), abs=1e-5)
        evaluated, by_keras = (own.evaluate(task.arrays, local_data(data, "x"), {}) for own in (by_graph, by_fit))
        assert evaluated[0] == by_keras[0] == len(data[1])
        assert evaluated[1] == pytest.approx(by_keras[1], abs=1e-5)


def test_a_training_depends_on_nothing_that_was_before() -> None:
    """Optimizer, statistics, dropout and metrics begin anew for each client, whatever was trained in between."""
    trainer = App(noisy, parts(), FedAvg(batch_size=8)).trainer()
    datas = [local_data(one, "x") for one in parts()]
    tasks = [TrainTask(0, 0, str(index), seed=index, arrays=trainer.local.weights()) for index in range(4)]
    first = [trainer.train(task, data, {})[0] for task, data in zip(tasks, datas, strict=True)]
    again = [trainer.train(task, data, {})[0] for task, data in reversed(list(zip(tasks, datas, strict=True)))]
    for one, other in zip(first, reversed(again), strict=True):
        assert one.metrics == other.metrics
        assert all(np.array_equal(one.arrays[name], other.arrays[name]) for name in one.arrays)


def test_clients_may_be_datasets_and_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small directory is read into arrays, a larger one by batches."""
    plain = parts()
    datasets = [tf.data.Dataset.from_tensor_slices(one).batch(200) for one in plain]
    for index, (x, y) in enumerate(plain):
        tfdist.data.write({"x": x, "label": y}, tmp_path / str(index))
    kinds = (plain, datasets, tmp_path)
    found = [weights_of(run(FedAvg(batch_size=None), rounds=2, data=data).model) for data in kinds]
    monkeypatch.setattr(client_data, "_IN_MEMORY_BYTES", 0)
    found.append(weights_of(run(FedAvg(batch_size=None), rounds=2, data=tmp_path).model))
    for kind in found[1:]:
        assert distance(found[0], kind) < 1e-6


def test_clients_may_have_any_name(tmp_path: Path) -> None:
    """Their states are in folders of their own, and a run that is resumed finds them."""
    names = ["../x", "Köln", "東京" * 50, "東京" * 49 + "京都", ".", "a/b"]
    data = dict(zip(names, parts(len(names)), strict=True))
    app = App(classifier, data, FedAvg(batch_size=None), compression="topk")
    whole = simulate(app, rounds=2)
    simulate(app, rounds=1, folder=tmp_path)
    found = simulate(app, rounds=2, folder=tmp_path, resume=True)
    assert distance(weights_of(found.model), weights_of(whole.model)) == 0
    folders = sorted(path.name for path in (tmp_path / "clients").iterdir())
    assert len(folders) == len(names)
    assert {"client-K%C3%B6ln", "client-..%2Fx", "client-."} <= set(folders)
    assert [one.startswith("client-%E6%9D%B1%E4%BA%AC%E6") for one in folders if len(one) > 100] == [True, True]


def test_personal_layers_stay() -> None:
    data = [(X[:60], Y[:60]), (X[60:], (Y[60:] + 1) % 3)]  # the same inputs, other labels
    shared, personal = (
        simulate(
            App(
                classifier,
                data,
                FedAvg(epochs=5, batch_size=10),
                participation=Participation(evaluate_on="clients", evaluate_every=12),
                personal_layers=layers,
            ),
            rounds=12,
        )
        for layers in ((), ("head",))
    )
    assert shared.rounds[-1].evaluation["accuracy"] < 0.7 < personal.rounds[-1].evaluation["accuracy"]
    assert distance(weights_of(personal.model)[2:], weights_of(classifier())[2:]) == 0  # the server never had them
    assert distance(weights_of(personal.model)[:2], weights_of(classifier())[:2]) > 0


# --- rounds -----------------------------------------------------------------------------------------------------------
def test_weights_are_capped_and_aggregators_are_used() -> None:
    data = [(X[:1], Y[:1]), (X, Y)]
    seen = list[list[float]]()

    class First(WholeRule):
        def aggregate(self, updates: Any, weights: Any) -> Any:
            seen.append(list(weights))
            return updates[0].arrays

    run(FedAvg(most_examples=7), rounds=1, data=data, aggregator=First())
    assert sorted(seen[0]) == [1.0, 7.0]


def test_a_fraction_of_the_clients_is_evaluated_where_asked() -> None:
    part = Participation(fraction=0.5, evaluate_on="clients", evaluate_every=2)
    found = run(FedAvg(), participation=part, rounds=3)
    assert [one.used for one in found.rounds] == [2, 2, 2]
    assert [bool(one.evaluation) for one in found.rounds] == [False, True, True]


def test_a_drill_shows_which_rule_survives_liars() -> None:
    def moved(aggregator: Any, liars: Liars | None) -> float:
        app = App(classifier, parts(), FedAvg(), aggregator=aggregator)
        found = simulate(app, rounds=1, seed=4, liars=liars).model
        return distance(weights_of(found), weights_of(classifier()))

    lies = Liars(0.25, "sign-flip", 1e6)
    found = run(FedAvg(), rounds=1, aggregator=NormClipping(liars=1, limit=100.0), liars=lies)
    assert found.rounds[0].clipped_updates == 1
    assert "; updates clipped: 1;" in shown(found.rounds[0])
    assert moved(Mean(), lies) > 1000
    assert moved(Median(liars=1), lies) < 3 * moved(Mean(), None)


@pytest.mark.parametrize("algorithm", [FedProx(mu=1.0), Scaffold(batch_size=8)], ids=["FedProx", "Scaffold"])
def test_a_loss_of_evaluation_has_no_term_of_the_algorithm(algorithm: Any) -> None:
    result = run(algorithm, rounds=2, test_data=(X, Y))
    expected = result.model.evaluate(X, Y, verbose=0, return_dict=True)
    assert result.rounds[-1].evaluation == pytest.approx(expected, rel=1e-5)


def test_processes_have_the_bits_of_one(tmp_path: Path) -> None:
    """The training has state that stays at clients, clients that are cancelled or lie, and evaluation on clients."""
    folders = (tmp_path / "one", tmp_path / "two")
    results = [
        run(
            FedAvg(epochs=2, batch_size=8),
            participation=Participation(fraction=0.6, spare=0.5, evaluate_on="clients"),
            personal_layers=["head"],
            compression=TopK(density=0.2),
            liars=Liars(0.25, "sign-flip"),
            folder=folder,
            processes=count,
        )
        for count, folder in enumerate(folders, start=1)
    ]
    one, other = ([{**asdict(record), "seconds": 0} for record in result.rounds] for result in results)
    assert one == other
    for a, b in zip(*(result.model.get_weights() for result in results), strict=True):
        np.testing.assert_array_equal(a, b)
    states = [{path.name: path.read_bytes() for path in folder.glob("clients/*/*")} for folder in folders]
    assert states[0] == states[1] != {}


def test_what_cannot_travel_to_processes_is_refused() -> None:
    data = [tf.data.Dataset.from_tensor_slices(one).batch(8) for one in parts()]
    with refused(ConfigError, name="processes", received=2):
        run(FedAvg(), data=data, processes=2)


class KilledAfter(Mean):
    """The simulation is killed when it has taken so many updates."""

    def __init__(self, updates: int) -> None:
        self._before = iter(range(updates))

    def start(self) -> Any:
        begun: Any = super().start()
        add = begun.add
        begun.add = lambda *update: (next(self._before), add(*update))
        return begun


def test_a_simulation_that_is_resumed_ends_with_the_same_bits(forking: Forks, tmp_path: Path) -> None:
    """In processes, where it is killed in the middle of a round, in this one, and in processes again."""
    app = App(classifier, parts(), Scaffold(batch_size=8), participation=Participation(fraction=0.5), test_data=(X, Y))
    whole = simulate(app, rounds=4, seed=9)
    with forking.for_task_pools(), pytest.raises(StopIteration):
        simulate(replace(app, aggregator=KilledAfter(5)), rounds=4, seed=9, folder=tmp_path, processes=2)
    with refused(ConfigError, path=tmp_path):
        simulate(app, rounds=4, seed=9, folder=tmp_path)
    with refused(ConfigError, name="seed", received=8):
        simulate(app, rounds=4, seed=8, folder=tmp_path, resume=True)
    first = simulate(app, rounds=3, seed=9, folder=tmp_path, resume=True)
    assert len(first.rounds) == 3
    with forking.for_task_pools():  # and may be given more rounds
        found = simulate(app, rounds=4, seed=9, folder=tmp_path, resume=True, processes=2)
    assert distance(weights_of(found.model), weights_of(whole.model)) == 0
    assert [one.evaluation for one in found.rounds] == [one.evaluation for one in whole.rounds]
    assert len((tmp_path / "rounds.jsonl").read_text().splitlines()) == 4


def test_a_client_that_has_evaluated_can_train_the_round_again(tmp_path: Path) -> None:
    """A simulation that is killed while clients evaluate asks for the trainings of the round once more."""
    states = ClientStates(tmp_path)
    turns = [None, (0, 0), (1, 0), (2, 1)]
    for number, (before, turn) in enumerate(pairwise(turns)):
        assert turn is not None
        states.save("rome", turn, {"personal/head": np.full(1, float(number))}, counted=before)
        for number_of_any, counted in ((number, turn), (number - 1, before)):
            found = states.load("rome", counted)
            assert [*found.values()] == ([] if counted is None else [number_of_any])


class Server:
    """A server whose clients train the same each time, run in two processes: one is killed at an event."""

    def __init__(self, algorithm: Any) -> None:
        part = Participation(evaluate_on="clients")
        self.app = App(classifier, parts(3), algorithm, participation=part)
        self.trainer = self.app.trainer()
        self.rules = self.app.rules(rounds=2, clients=3, seed=1)
        self.trained = dict[tuple[int, str], Any]()

    def run(self, folder: Path, kill_at: int) -> tuple[FederatedSession, int]:
        """Run until the event of this number, then again to the end; return how many events the last run had."""
        states = ClientStates(folder / "clients")
        for limit in (kill_at, 10_000):
            weights = self.trainer.local.weights()
            session = FederatedSession(self.app, self.rules, weights, clients=3, folder=folder, resume=True)
            pending: list[Any] = [answer for one in session.start() for answer in self.answers(one, session, states)]
            pending += [(Joined(one), None) for one in self.app.names()]
            for count in range(1, limit + 1):
                actions = session.handle(*pending.pop(0))
                pending += [answer for one in actions for answer in self.answers(one, session, states)]
                if session.machine.is_over:
                    return session, count
        raise AssertionError("it did not end")

    def answers(self, action: Any, session: FederatedSession, states: ClientStates) -> list[Any]:
        match action:
            case Configure(round, attempt, clients):
                return [(Configured(round, attempt, clients), None)]
            case Evaluate(round, attempt, client):
                return [(Evaluated(round, attempt, client, 5, {"loss": float(client)}), None)]
            case Train(round, attempt, client):
                state = states.load(client, session.counted(client))
                if (round, client) not in self.trained:
                    data = self.app.data_of(client)
                    self.trained[round, client] = self.trainer.train(session.task(action), data, state)
                update, new_state = self.trained[round, client]
                states.save(client, (round, attempt), new_state, counted=session.counted(client))
                return [(Trained(round, attempt, client, update.examples), update)]
        return []


@pytest.mark.parametrize("algorithm", [FedAvg(), Scaffold(batch_size=8)], ids=lambda one: type(one).__name__)
def test_a_server_killed_at_any_event_ends_with_the_same_bits(algorithm: Any, tmp_path: Path) -> None:
    server = Server(algorithm)
    whole, count = server.run(tmp_path / "whole", kill_at=10_000)
    assert count > 15
    for kill_at in range(1, count):
        found, _ = server.run(tmp_path / str(kill_at), kill_at)
        for name, array in whole.state.weights.items():
            assert np.array_equal(array, found.state.weights[name]), (kill_at, name)
        for name, array in whole.state.slots.items():
            assert np.array_equal(array, found.state.slots[name]), (kill_at, name)
        assert [one.used for one in found.records] == [3, 3]


def test_a_client_whose_training_breaks_is_left_out_and_named(caplog: pytest.LogCaptureFixture) -> None:
    broken = (np.full_like(X, np.nan), Y)
    with caplog.at_level(logging.WARNING, "tfdist"):
        found = run(FedAvg(), data={"whole": (X, Y), "broken": broken}, rounds=1)
        alone = run(FedAvg(), data={"whole": (X, Y)}, rounds=1)
    said = [one.getMessage() for one in caplog.records if one.name.startswith("tfdist")]
    assert ["broken" in one for one in said] == [True]
    assert found.rounds[0].used == 1
    assert distance(weights_of(found.model), weights_of(alone.model)) == 0
    with refused(DeadlineError, mentions=("broken failed", "NaN")):
        run(FedAvg(), data={"broken": broken}, rounds=1)


def test_too_few_updates_end_the_run() -> None:
    class Broken(WholeRule):
        def aggregate(self, updates: Any, weights: Any) -> Any:
            raise ConfigError("too many liars.")

    with refused(DeadlineError, mentions=("round 0", "too many liars")):
        run(FedAvg(), aggregator=Broken())


# --- refusals ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"make_model": lambda: keras.Sequential([keras.layers.Dense(1)])}, ConfigError, "make_model"),
        (
            {"make_model": lambda: keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])},
            ConfigError,
            "make_model",
        ),
        ({"make_model": lambda: None}, ConfigTypeError, "make_model"),
        ({"make_model": 3}, ConfigTypeError, "make_model"),
        ({"algorithm": FedAvg}, ConfigTypeError, "algorithm"),
        ({"client_data": []}, ConfigError, "client_data"),
        ({"client_data": lambda name: (X, Y)}, ConfigError, "clients"),
        ({"client_data": lambda name: (X, Y[:-1]), "clients": 2}, ConfigError, "client_data"),
        ({"client_data": {"a": (X, Y[:-1])}}, ConfigError, "client_data"),
        ({"client_data": [(X, Y[:-1])]}, ConfigError, "client_data"),
        ({"client_data": lambda name: (X[:0], Y[:0]), "clients": 2}, ConfigError, "client_data"),
        ({"client_data": lambda name: None, "clients": 2}, ConfigTypeError, "client_data"),
        ({"client_data": lambda name: batches().repeat(), "clients": 2}, ConfigError, "client_data"),
        ({"client_data": lambda name: batches().take(0), "clients": 2}, ConfigError, "client_data"),
        ({"client_data": {"a": (X, Y)}, "clients": ["b"]}, ConfigError, "clients"),
        ({"clients": ["a", "a"]}, ConfigError, "clients"),
        ({"clients": 0}, ConfigError, "clients"),
        ({"personal_layers": ["haed"]}, ConfigError, "personal_layers"),
        ({"personal_layers": "head"}, ConfigTypeError, "personal_layers"),
        ({"personal_layers": ["body", "head"]}, ConfigError, "personal_layers"),
        ({"personal_layers": ["head"], "test_data": (X, Y)}, ConfigError, "test_data"),
        ({"make_model": noisy, "algorithm": Scaffold()}, ConfigError, "optimizer"),
        ({"make_model": lambda: classifier(optimizer=keras.optimizers.Ftrl())}, ConfigError, "optimizer"),
        ({"make_model": lambda: classifier(optimizer=keras.optimizers.ScheduleFreeAdamW())}, ConfigError, "optimizer"),
        ({"participation": Participation(minimum=9)}, ConfigError, "minimum"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, Any], error: Any, name: str) -> None:
    given = {"make_model": classifier, "client_data": parts(), "algorithm": FedAvg(), **options}
    with refused(error, name=name):
        simulate(App(**given), rounds=1)
