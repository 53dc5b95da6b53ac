"""The state machine of rounds: select, configure, train, aggregate, evaluate.

A driver passes events to the machine and carries out the actions that it returns. The state is a function of the rules
and the events alone. So a server that was killed replays its journal, passes `Restarted`, and continues.
"""

import enum
import hashlib
from collections.abc import Iterable, Sequence
from typing import Any

from tfdist.federated.rounds import round_messages as messages
from tfdist.federated.rounds.round_messages import Action, Event
from tfdist.federated.rounds.round_rules import RoundRules
from tfdist.validation import counted


class Phase(enum.StrEnum):
    """The phases of a round, and its two ends."""

    SELECT = "select"
    CONFIGURE = "configure"
    TRAIN = "train"
    AGGREGATE = "aggregate"
    EVALUATE = "evaluate"
    DONE = "done"
    FAILED = "failed"


def chosen(clients: Iterable[str], count: int, *salt: object) -> tuple[str, ...]:
    """Return ``count`` of the clients, or all if there are fewer, in an order that the salt decides.

    Each client's place depends only on its own name and the salt.

    Example:
        >>> chosen(["a", "b", "c"], 2, "seed 0", "round 0")
        ('b', 'a')
    """
    text = "\0".join(map(str, salt))
    return tuple(sorted(clients, key=lambda one: hashlib.sha256(f"{text}\0{one}".encode()).digest())[:count])


def sampled(clients: Iterable[str], rate: float, *salt: object) -> tuple[str, ...]:
    """Return a sample in which each client is with this probability, in an order that the salt decides as well.

    Example:
        >>> sampled(["a", "b", "c", "d"], 0.5, "secret", "round 1")
        ('a', 'd')
    """
    text = "\0".join(map(str, salt))
    digests = {one: hashlib.sha256(f"{text}\0{one}".encode()).digest() for one in clients}
    taken = [one for one, digest in digests.items() if int.from_bytes(digest[:8], "big") < rate * 2**64]
    return tuple(sorted(taken, key=lambda one: digests[one][8:]))


class RoundMachine:
    """The rounds of one run.

    Example:
        >>> machine = RoundMachine(RoundRules(rounds=1, target=1, evaluate_on="nothing"))
        >>> machine.handle(messages.Joined("berlin"))[0]
        Configure(round=0, attempt=0, clients=('berlin',))
        >>> machine.handle(messages.Configured(0, 0, ("berlin",)))[1]
        Train(round=0, attempt=0, client='berlin')
        >>> machine.handle(messages.Trained(0, 0, "berlin", examples=20))
        [Aggregate(round=0, attempt=0, clients=('berlin',))]
        >>> [type(action).__name__ for action in machine.handle(messages.Aggregated(0, 0))]
        ['EndRound', 'Stop']
    """

    def __init__(self, rules: RoundRules) -> None:
        self.rules = rules
        self.round = 0
        self.attempt = 0
        self.phase = Phase.SELECT
        self._available = set[str]()
        self._selected = dict[str, None]()  # in the order of selection
        self._waiting = dict[str, None]()  # asked in this phase, and not answered
        self._trained = dict[str, int]()
        self._evaluated = dict[str, tuple[int, dict[str, float]]]()
        self._failure = ""  # what a client of this attempt said last

    @property
    def is_over(self) -> bool:
        return self.phase in (Phase.DONE, Phase.FAILED)

    def start(self) -> list[Action]:
        """Return the first actions of a run."""
        return [self._deadline(self.rules.select_seconds)]

    def handle(self, event: Event) -> list[Action]:
        """Handle an event and return the actions; an event that is late, unknown or repeated changes nothing."""
        reason = self.refusal(event)
        if reason:
            return [messages.Ignored(getattr(event, "client", ""), reason)]
        return self._handled(event)

    def _handled(self, event: Event) -> list[Action]:
        match event:
            case messages.Joined():
                return self._joined(event)
            case messages.Left():
                self._available.discard(event.client)
                return self._lost(event.client)
            case messages.Restarted():
                return self._restarted()
            case messages.Configured():
                return self._configured(event)
            case messages.Trained():
                del self._waiting[event.client]
                self._trained[event.client] = event.examples
                return self._training_end()
            case messages.ClientFailed():
                self._failure = f"; {event.client} failed: {event.reason}"
                return self._lost(event.client)
            case messages.Aggregated() | messages.SumHidden():
                return self._aggregated(event)
            case messages.AggregationFailed():
                return self._discard(event.reason)
            case messages.Evaluated():
                del self._waiting[event.client]
                self._evaluated[event.client] = (event.examples, dict(event.metrics))
                return self._evaluation_end()
            case messages.EvaluatedCentrally():
                return self._end_round(dict(event.metrics))
            case messages.DeadlinePassed():
                return self._deadline_passed()

    def refusal(self, event: Event) -> str:
        """Return the reason to ignore the event; "" if it counts and a driver must keep what comes with it."""
        if isinstance(event, messages.Restarted):
            return "the run is over" if self.phase is Phase.DONE and self.round >= self.rules.rounds else ""
        if isinstance(event, messages.Joined | messages.Left):
            return "the run is over" if self.is_over else ""
        if self.phase not in _PHASES[type(event)]:
            return f"{type(event).__name__} does not belong to the phase {self.phase}"
        if (event.round, event.attempt) != (self.round, self.attempt):
            return f"round {event.round}, attempt {event.attempt} is not the current one ({self.round}, {self.attempt})"
        if isinstance(event, messages.DeadlinePassed) and event.phase != self.phase:
            return f"the phase is {self.phase}, and no longer {event.phase}"
        if isinstance(event, messages.Trained | messages.Evaluated) and event.examples < 1:
            return f"{event.examples} examples are none"
        answers = messages.Trained | messages.Evaluated | messages.ClientFailed
        if isinstance(event, answers) and event.client not in self._waiting:
            return "it was not asked, or has answered"
        return ""

    # --- clients come and go ------------------------------------------------------------------------------------------
    def _joined(self, event: messages.Joined) -> list[Action]:
        self._available.add(event.client)
        if self.phase is Phase.SELECT:
            return self._select() if len(self._available) >= self.rules.wait_for else []
        if self.phase is Phase.TRAIN and event.client in self._selected and event.client not in self._trained:
            self._waiting[event.client] = None
            return [messages.Train(self.round, self.attempt, event.client)]
        if self.phase is Phase.EVALUATE and event.client in self._waiting:
            return [messages.Evaluate(self.round, self.attempt, event.client)]
        return []

    def _lost(self, client: str) -> list[Action]:
        if self.phase not in (Phase.TRAIN, Phase.EVALUATE) or client not in self._waiting:
            return []
        del self._waiting[client]
        return self._training_end() if self.phase is Phase.TRAIN else self._evaluation_end()

    def _restarted(self) -> list[Action]:
        self._available.clear()
        if self.phase is Phase.FAILED:
            self.attempt = 0
        if self.phase not in (Phase.TRAIN, Phase.AGGREGATE, Phase.EVALUATE):  # a run may be given more rounds
            self.phase = Phase.SELECT
            return self.start()
        if self.phase is Phase.TRAIN:  # clients are asked again when they join
            return [self._deadline(self.rules.train_seconds)]
        if self.phase is Phase.AGGREGATE:
            return [self._aggregate()]
        if self.rules.evaluate_on == "server":
            return [messages.EvaluateCentrally(self.round, self.attempt)]
        return [self._deadline(self.rules.evaluate_seconds)]

    # --- the phases ---------------------------------------------------------------------------------------------------
    def _select(self) -> list[Action]:
        rules, turn = self.rules, (self.round, self.attempt)
        if rules.rate is None:
            found = chosen(self._available, rules.target + rules.spare, rules.seed, "train", *turn)
        else:
            found = sampled(self._available, rules.rate, rules.salt, *turn)
        self._selected = dict.fromkeys(found)
        self._trained, self._evaluated, self._failure = {}, {}, ""
        self.phase = Phase.CONFIGURE
        return [messages.Configure(self.round, self.attempt, found), self._deadline(self.rules.configure_seconds)]

    def _configured(self, event: messages.Configured) -> list[Action]:
        ready = [one for one in self._selected if one in event.clients]
        if len(ready) < self.rules.minimum:
            return self._discard(f"{len(ready)} of {len(self._selected)} clients got ready")
        self._waiting = dict.fromkeys(one for one in ready if one in self._available)
        self.phase = Phase.TRAIN
        begun: list[Action] = [self._deadline(self.rules.train_seconds)]
        asked = [messages.Train(self.round, self.attempt, one) for one in self._waiting]
        return [*begun, *asked] if asked else self._training_end()

    def _training_end(self) -> list[Action]:
        if self.rules.rate is None and len(self._trained) >= self.rules.target:
            return self._close()
        if self._waiting:
            return []
        if len(self._trained) >= self.rules.minimum:
            return self._close()
        return self._discard(f"{len(self._trained)} of {len(self._selected)} clients sent an update, and none is left")

    def _close(self) -> list[Action]:
        cancelled = self._cancelled()
        self.phase = Phase.AGGREGATE
        return [*cancelled, self._aggregate()]

    def _cancelled(self) -> list[Action]:
        cancelled: list[Action] = [messages.Cancel(self.round, self.attempt, one) for one in self._waiting]
        self._waiting = {}
        return cancelled

    def _aggregate(self) -> Action:
        used = tuple(one for one in self._selected if one in self._trained)
        return messages.Aggregate(self.round, self.attempt, used)

    def _discard(self, reason: str) -> list[Action]:
        reason = f"{reason}; at least {self.rules.minimum} must{self._failure}"
        done = [*self._cancelled(), messages.Discard(self.round, self.attempt, reason)]
        self._trained = {}
        self.attempt += 1
        if self.attempt >= self.rules.attempts:
            return [*done, *self._fail(f"round {self.round} failed {self.attempt} times, last because {reason}")]
        return [*done, *self._next()]

    def _aggregated(self, event: messages.Aggregated | messages.SumHidden) -> list[Action]:
        if isinstance(event, messages.SumHidden):
            self._trained = {}
        is_last = self.round + 1 == self.rules.rounds
        is_due = (self.round + 1) % self.rules.evaluate_every == 0 or is_last
        if self.rules.evaluate_on == "nothing" or not is_due:
            return self._end_round({})
        self.phase = Phase.EVALUATE
        if self.rules.evaluate_on == "server":
            return [messages.EvaluateCentrally(self.round, self.attempt)]
        asked = chosen(self._available, self.rules.target, self.rules.seed, "evaluate", self.round)
        self._waiting = dict.fromkeys(asked)
        if not asked:
            return self._evaluation_end()
        sent: Sequence[Action] = [messages.Evaluate(self.round, self.attempt, one) for one in asked]
        return [self._deadline(self.rules.evaluate_seconds), *sent]

    def _evaluation_end(self) -> list[Action]:
        if self._waiting:
            return []
        answers = [self._evaluated[one] for one in sorted(self._evaluated)]
        return self._end_round(weighted_metrics(answers))

    def _end_round(self, metrics: dict[str, float]) -> list[Action]:
        trained = {one: self._trained[one] for one in self._selected if one in self._trained}
        ended = messages.EndRound(self.round, self.attempt, tuple(self._selected), trained, metrics)
        self.round, self.attempt = self.round + 1, 0
        if self.round == self.rules.rounds:
            self.phase = Phase.DONE
            return [ended, messages.Stop()]
        return [ended, *self._next()]

    def _next(self) -> list[Action]:
        self.phase = Phase.SELECT
        return self._select() if len(self._available) >= self.rules.wait_for else self.start()

    def _deadline_passed(self) -> list[Action]:
        if self.phase is Phase.SELECT:
            needed = max(self.rules.minimum, 1)
            if len(self._available) >= needed:
                return self._select()
            return self._fail(
                f"{counted(len(self._available), 'client')} joined within {self.rules.select_seconds:g} s; "
                f"round {self.round} needs {needed}"
            )
        if self.phase is Phase.EVALUATE:
            self._waiting = {}
            return self._evaluation_end()
        if self.phase is Phase.TRAIN and len(self._trained) >= self.rules.minimum:
            return self._close()
        answered = f"{len(self._trained)} of {len(self._selected)} clients answered in time"
        return self._discard(f"{answered} in the phase {self.phase}")

    def _fail(self, error: str) -> list[Action]:
        self.phase = Phase.FAILED
        return [messages.Stop(error)]

    def _deadline(self, seconds: float) -> Action:
        return messages.SetDeadline(self.round, self.attempt, self.phase.value, seconds)

    # --- state --------------------------------------------------------------------------------------------------------
    def state(self) -> dict[str, Any]:
        """Return the state as JSON, for `restore`."""
        return {
            "round": self.round,
            "attempt": self.attempt,
            "phase": self.phase.value,
            "available": sorted(self._available),
            "selected": list(self._selected),
            "waiting": list(self._waiting),
            "failure": self._failure,
            "trained": dict(self._trained),
            "evaluated": {name: [examples, metrics] for name, (examples, metrics) in self._evaluated.items()},
        }

    @classmethod
    def restore(cls, rules: RoundRules, state: dict[str, Any]) -> "RoundMachine":
        """Return the machine that `state` describes."""
        machine = cls(rules)
        machine.round, machine.attempt, machine.phase = state["round"], state["attempt"], Phase(state["phase"])
        machine._available = set(state["available"])
        machine._selected, machine._waiting = dict.fromkeys(state["selected"]), dict.fromkeys(state["waiting"])
        machine._trained, machine._failure = dict(state["trained"]), state["failure"]
        machine._evaluated = {name: (examples, dict(found)) for name, (examples, found) in state["evaluated"].items()}
        return machine


def weighted_metrics(answers: Sequence[tuple[int, dict[str, float]]]) -> dict[str, float]:
    """Return the mean of metrics by examples; if some clients lack a metric, its mean is over the others.

    Example:
        >>> weighted_metrics([(1, {"loss": 1.0}), (3, {"loss": 5.0, "accuracy": 0.5})])
        {'loss': 4.0, 'accuracy': 0.5}
    """
    names = dict.fromkeys(name for _, metrics in answers for name in metrics)
    return {
        name: sum(n * found[name] for n, found in answers if name in found)
        / sum(n for n, found in answers if name in found)
        for name in names
    }


_PHASES: dict[type[Any], tuple[Phase, ...]] = {
    messages.Configured: (Phase.CONFIGURE,),
    messages.Trained: (Phase.TRAIN,),
    messages.ClientFailed: (Phase.TRAIN, Phase.EVALUATE),
    messages.Aggregated: (Phase.AGGREGATE,),
    messages.AggregationFailed: (Phase.AGGREGATE,),
    messages.SumHidden: (Phase.AGGREGATE,),
    messages.Evaluated: (Phase.EVALUATE,),
    messages.EvaluatedCentrally: (Phase.EVALUATE,),
    messages.DeadlinePassed: (Phase.SELECT, Phase.CONFIGURE, Phase.TRAIN, Phase.EVALUATE),
}
