"""The state machine of rounds: what each event leads to, and that a server killed at any event goes on."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from tests.refusals import refused
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.federated.rounds import (
    Aggregate,
    Aggregated,
    AggregationFailed,
    Cancel,
    ClientFailed,
    Configure,
    Configured,
    DeadlinePassed,
    Discard,
    EndRound,
    Evaluate,
    EvaluateCentrally,
    Evaluated,
    EvaluatedCentrally,
    Ignored,
    Joined,
    Left,
    Phase,
    Restarted,
    RoundMachine,
    RoundRules,
    SetDeadline,
    Stop,
    SumHidden,
    Train,
    Trained,
)
from tfdist.federated.rounds.round_messages import from_json, to_json
from tfdist.validation import counted

RULES = RoundRules(rounds=2, target=2, minimum=1, spare=1, wait_for=3, evaluate_on="clients", seed=7)


class World:
    """Clients that do what they are asked, one event at a time, and a server that may be killed between two."""

    def __init__(self, rules: RoundRules, clients: int, kill_at: int = -1) -> None:
        self.rules, self.kill_at = rules, kill_at
        self.clients = [f"client {index}" for index in range(clients)]
        self.machine = RoundMachine(rules)
        self.events: list[Any] = [Joined(one) for one in self.clients]
        self.journal: list[str] = []
        self.used: list[Aggregate] = []
        self.rounds: list[EndRound] = []
        self.stopped: list[Stop] = []

    def run(self) -> "World":
        self.act(self.machine.start())
        while self.events and not self.stopped:
            event = self.events.pop(0)
            self.journal.append(to_json(event))
            if len(self.journal) == self.kill_at:  # after the journal was written, before anything was done
                self.restart()
                continue
            self.act(self.machine.handle(event))
        return self

    def restart(self) -> None:
        self.machine = RoundMachine(self.rules)
        self.machine.start()
        actions = []
        for line in [*self.journal, to_json(Restarted())]:
            actions = self.machine.handle(from_json(line))
        self.machine = RoundMachine.restore(self.rules, json.loads(json.dumps(self.machine.state())))
        self.journal.append(to_json(Restarted()))
        self.events = [Joined(one) for one in self.clients]
        self.act(actions)

    def act(self, actions: list[Any]) -> None:
        for action in actions:
            match action:
                case Configure(round, attempt, clients):
                    self.events.append(Configured(round, attempt, clients))
                case Train(round, attempt, client):
                    self.events.append(Trained(round, attempt, client, examples=10))
                case Evaluate(round, attempt, client):
                    self.events.append(Evaluated(round, attempt, client, 10, {"loss": float(round)}))
                case EvaluateCentrally(round, attempt):
                    self.events.append(EvaluatedCentrally(round, attempt, {"loss": float(round)}))
                case Aggregate(round, attempt, _):
                    self.used.append(action)
                    self.events.append(Aggregated(round, attempt))
                case EndRound():
                    self.rounds.append(action)
                case Stop():
                    self.stopped.append(action)


def in_training(rules: RoundRules = RULES) -> tuple[RoundMachine, tuple[str, ...]]:
    machine = RoundMachine(rules)
    configure: list[Any] = [action for one in "abc" for action in machine.handle(Joined(one))]
    assert isinstance(configure[0], Configure)
    clients = configure[0].clients
    actions = machine.handle(Configured(0, 0, clients))
    assert actions[1:] == [Train(0, 0, one) for one in clients]
    return machine, clients


def test_a_round_ends_with_its_target_and_cancels_the_others() -> None:
    machine, (first, second, third) = in_training()
    assert machine.handle(Trained(0, 0, second, 10)) == []
    assert machine.handle(Trained(0, 0, first, 30)) == [Cancel(0, 0, third), Aggregate(0, 0, (first, second))]
    late = machine.handle(Trained(0, 0, third, 10))
    assert isinstance(late[0], Ignored)
    assert late[0].client == third


@pytest.mark.parametrize(
    "event",
    [
        Trained(0, 1, "a", 10),
        Trained(1, 0, "a", 10),
        Trained(0, 0, "stranger", 10),
        Trained(0, 0, "a", 0),
        Aggregated(0, 0),
        Evaluated(0, 0, "a", 1),
        EvaluatedCentrally(0, 0),
        AggregationFailed(0, 0, "x"),
        SumHidden(0, 0, "x"),
        Configured(0, 0, ("a",)),
        DeadlinePassed(0, 0, "select"),
        ClientFailed(0, 0, "stranger", "x"),
    ],
)
def test_what_does_not_fit_changes_nothing(event: Any) -> None:
    machine, _ = in_training()
    before = machine.state()
    assert [type(action) for action in machine.handle(event)] == [Ignored]
    assert machine.state() == before


def test_an_update_that_comes_twice_counts_once() -> None:
    machine, clients = in_training()
    machine.handle(Trained(0, 0, clients[0], 10))
    assert [type(action) for action in machine.handle(Trained(0, 0, clients[0], 10))] == [Ignored]
    assert machine.state()["trained"] == {clients[0]: 10}


def test_a_client_that_comes_back_is_asked_again() -> None:
    machine, clients = in_training()
    assert machine.handle(Left(clients[0])) == []
    assert machine.handle(Joined(clients[0])) == [Train(0, 0, clients[0])]
    assert machine.handle(Trained(0, 0, clients[0], 1)) == []
    assert machine.state()["trained"] == {clients[0]: 1}
    machine.handle(Left(clients[0]))
    assert machine.handle(Joined(clients[0])) == [], "its update is there"


def test_those_who_got_ready_train_if_they_are_enough() -> None:
    for ready in (2, 1):
        machine = RoundMachine(replace(RULES, minimum=2))
        clients = next(done.clients for one in "abc" for done in machine.handle(Joined(one)))
        assert machine.handle(Joined("a")) == [], "it gets ready already"
        begun = machine.handle(Configured(0, 0, clients[:ready]))
        if ready == 2:
            assert begun[1:] == [Train(0, 0, clients[0]), Train(0, 0, clients[1])]
        else:
            assert (type(begun[0]), machine.attempt) == (Discard, 1)


def test_a_restarted_server_goes_on_in_the_same_attempt_and_phase() -> None:
    machine, _ = in_training()
    machine.handle(DeadlinePassed(0, 0, "train"))
    machine.handle(Configured(0, 1, ("a", "b", "c")))
    machine.handle(Trained(0, 1, "a", 1))
    assert machine.handle(Restarted()) == [SetDeadline(0, 1, "train", RULES.train_seconds)]
    aggregate = machine.handle(Trained(0, 1, "b", 1))[-1]
    assert aggregate == Aggregate(0, 1, tuple(one for one in machine.state()["selected"] if one != "c"))
    assert machine.handle(Restarted()) == [aggregate]
    assert [machine.handle(Joined(one)) for one in "abc"] == [[], [], []]
    asked = machine.handle(Aggregated(0, 1))[1:]
    assert machine.handle(Restarted()) == [SetDeadline(0, 1, "evaluate", RULES.evaluate_seconds)]
    again = [action for one in "abc" for action in machine.handle(Joined(one))]
    assert sorted(again, key=str) == sorted(asked, key=str)
    first, second = (one.client for one in asked if isinstance(one, Evaluate))
    late = RoundMachine.restore(RULES, machine.state()).handle(DeadlinePassed(0, 1, "evaluate"))
    assert machine.handle(Left(first)) == []
    ended, following = machine.handle(Evaluated(0, 1, second, 1))
    assert isinstance(ended, EndRound)
    assert late[0] == ended, "a round ends without the evaluation of those who are late"
    assert following == SetDeadline(1, 0, "select", RULES.select_seconds), "three must be there"


def test_the_deadline_takes_what_is_there() -> None:
    machine, clients = in_training()
    machine.handle(Trained(0, 0, clients[2], 10))
    actions = machine.handle(DeadlinePassed(0, 0, "train"))
    assert actions == [Cancel(0, 0, clients[0]), Cancel(0, 0, clients[1]), Aggregate(0, 0, (clients[2],))]


def test_too_few_updates_are_another_attempt_with_other_clients() -> None:
    machine, clients = in_training(replace(RULES, minimum=2))
    for one in clients[:2]:
        last: list[Any] = machine.handle(ClientFailed(0, 0, one, "no memory"))
    assert last == []
    last = machine.handle(Left(clients[2]))
    assert isinstance(last[0], Discard)
    assert (machine.round, machine.attempt, machine.phase) == (0, 1, Phase.SELECT)
    assert machine.handle(Joined(clients[2]))[0] == Configure(0, 1, tuple(machine.state()["selected"]))


def test_a_round_that_fails_too_often_ends_the_run() -> None:
    machine, _ = in_training(replace(RULES, attempts=3))
    for attempt in range(3):
        last: list[Any] = machine.handle(DeadlinePassed(0, attempt, "train"))
        if attempt < 2:
            machine.handle(Configured(0, attempt + 1, ("a", "b", "c")))
    assert isinstance(last[-1], Stop)
    assert "round 0" in last[-1].error
    assert machine.phase is Phase.FAILED
    assert machine.handle(Restarted()) == [SetDeadline(0, 0, "select", RULES.select_seconds)], "with all its attempts"
    assert machine.handle(Joined("a")) == [], "the others are not connected any more"


def test_too_few_clients_end_the_run_at_the_deadline() -> None:
    machine = RoundMachine(replace(RULES, minimum=2))
    assert machine.start() == [SetDeadline(0, 0, "select", RULES.select_seconds)]
    machine.handle(Joined("a"))
    stop = machine.handle(DeadlinePassed(0, 0, "select"))[0]
    assert isinstance(stop, Stop)
    assert counted(1, "client") in stop.error
    machine = RoundMachine(RULES)
    machine.handle(Joined("a"))
    assert machine.handle(DeadlinePassed(0, 0, "select"))[0] == Configure(0, 0, ("a",)), "as many as must be"


def test_all_clients_are_selected_in_turn() -> None:
    world = World(replace(RULES, rounds=60, target=2, spare=0, wait_for=10), clients=10).run()
    assert {one for used in world.used for one in used.clients} == set(world.clients)
    assert all(len(used.clients) == 2 for used in world.used)


@pytest.mark.parametrize("evaluate_on", ["clients", "server", "nothing"])
def test_a_server_killed_at_any_event_ends_with_the_same_rounds(evaluate_on: Any) -> None:
    rules = replace(RULES, spare=0, target=3, wait_for=4, evaluate_on=evaluate_on)
    whole = World(rules, clients=4).run()
    assert [one.round for one in whole.rounds] == [0, 1]
    assert whole.machine.is_over
    assert [type(whole.machine.handle(one)[0]) for one in (Restarted(), Joined("late"))] == [Ignored, Ignored]
    longer = RoundMachine.restore(replace(rules, rounds=3), whole.machine.state())
    assert longer.handle(Restarted()) == [SetDeadline(2, 0, "select", rules.select_seconds)]
    for kill_at in range(1, len(whole.journal)):
        killed = World(rules, clients=4, kill_at=kill_at).run()
        assert killed.stopped == [Stop()]
        assert dict.fromkeys(killed.used) == dict.fromkeys(whole.used), kill_at
        assert [(one.round, one.trained, one.metrics) for one in killed.rounds][-2:] == [
            (one.round, one.trained, one.metrics) for one in whole.rounds
        ][-len(killed.rounds) :], kill_at


@pytest.mark.parametrize("evaluate_on", ["clients", "server", "nothing"])
def test_every_third_round_and_the_last_are_evaluated(evaluate_on: Any) -> None:
    ended = World(replace(RULES, rounds=5, evaluate_every=3, evaluate_on=evaluate_on), clients=3).run().rounds
    evaluated = () if evaluate_on == "nothing" else (2, 4)
    assert [one.metrics for one in ended] == [{"loss": float(n)} if n in evaluated else {} for n in range(5)]


def test_a_round_by_rate_waits_for_all_of_its_sample_even_if_that_is_none() -> None:
    by_rate = replace(RULES, rate=1.0, target=1, minimum=0)
    machine, clients = in_training(by_rate)
    assert [machine.handle(Trained(0, 0, one, 1)) for one in clients] == [[], [], [Aggregate(0, 0, clients)]]
    machine = RoundMachine(replace(by_rate, rate=1e-12))
    (configure, _) = [action for one in "abc" for action in machine.handle(Joined(one))]
    assert configure == Configure(0, 0, ())
    assert machine.handle(Configured(0, 0, ())) == [Aggregate(0, 0, ())]


def test_any_order_of_events_ends() -> None:
    """Clients come, go, fail and answer in any order: a run ends, and no client counts twice."""
    for seed in range(100):
        luck = random.Random(seed)
        rules = RoundRules(
            rounds=3,
            target=luck.randint(1, 4),
            spare=luck.randint(0, 2),
            wait_for=luck.randint(1, 4),
            evaluate_on=luck.choice(["server", "clients", "nothing"]),
        )
        machine, clients = RoundMachine(rules), list("abcde")
        pending: list[Any] = list(machine.start()) + [Joined(one) for one in clients]
        for _ in range(10_000):
            if machine.phase in (Phase.DONE, Phase.FAILED):
                break
            answer = answer_of(pending.pop(luck.randrange(len(pending))), luck)
            for event in answer:
                found: list[Any] = machine.handle(from_json(to_json(event)))
                kept = json.loads(json.dumps(machine.state()))
                machine = RoundMachine.restore(rules, kept)
                assert json.loads(json.dumps(machine.state())) == kept
                pending += [one for one in found if not isinstance(one, Ignored | Cancel | Discard | EndRound | Stop)]
                for one in found:
                    if isinstance(one, Aggregate):
                        assert rules.minimum <= len(one.clients) <= rules.target
                        assert len(set(one.clients)) == len(one.clients)
        assert machine.phase in (Phase.DONE, Phase.FAILED), seed


def answer_of(action: Any, luck: random.Random) -> list[Any]:
    """Return the events after an action: an answer, a failure, or a client that goes and comes back."""
    match action:
        case Joined():
            return [action]
        case SetDeadline(round, attempt, phase, _):
            return [DeadlinePassed(round, attempt, phase)]
        case Configure(round, attempt, clients):
            return [Configured(round, attempt, clients[luck.randint(0, 1) :])]
        case Aggregate(round, attempt, _):
            failed = luck.choice([AggregationFailed, SumHidden])(round, attempt, "the keys were lost")
            return [failed if luck.random() < 0.1 else Aggregated(round, attempt)]
        case EvaluateCentrally(round, attempt):
            return [EvaluatedCentrally(round, attempt, {"loss": 1.0})]
        case Train(round, attempt, client):
            done = Trained(round, attempt, client, 5)
            return luck.choice([[done], [done, done], [ClientFailed(round, attempt, client, "x")], gone(client)])
        case Evaluate(round, attempt, client):
            return luck.choice([[Evaluated(round, attempt, client, 5, {"loss": 1.0})], gone(client)])
    raise AssertionError(action)


def gone(client: str) -> list[Any]:
    return [Left(client), Joined(client)]


def test_metrics_of_clients_are_weighted_by_their_examples() -> None:
    rules = RoundRules(rounds=1, target=2, wait_for=2, evaluate_on="clients")
    machine = RoundMachine(rules)
    for one in "ab":
        machine.handle(Joined(one))
    machine.handle(Configured(0, 0, ("a", "b")))
    for one in "ab":
        machine.handle(Trained(0, 0, one, 1))
    machine.handle(Aggregated(0, 0))
    machine.handle(Evaluated(0, 0, "a", 1, {"loss": 1.0}))
    ended = machine.handle(Evaluated(0, 0, "b", 3, {"loss": 5.0}))[0]
    assert isinstance(ended, EndRound)
    assert ended.metrics == {"loss": 4.0}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        '{"event": "Unknown"}',
        '{"event": "Joined"}',
        '{"event": "Joined", "client": 3}',
        '{"event": "Joined", "client": "a", "more": 1}',
        '{"event": "Trained", "round": true, "attempt": 0, "client": "a", "examples": 1}',
        '{"event": ["Joined"], "client": "a"}',
    ],
)
def test_a_line_that_is_no_event_is_refused(line: str) -> None:
    with refused(CorruptDataError, received=line):
        from_json(line)


def test_a_minimum_above_the_target_is_refused() -> None:
    with refused(ConfigError, name="minimum", received=3):
        RoundRules(rounds=1, target=2, minimum=3)
