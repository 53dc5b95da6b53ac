"""The search, before a step runs on several replicas, for the rules that combine the replicas' results.

The rules of Keras' own results are known. The results of other code are tried (`tried_step`) on a few rows of the first
batch, on two parts of them, and on them given twice. Losses, gradients, logs, metrics and states are compared
(`judging`), and all workers come to the same verdicts. A value that is neither a mean nor a sum may look like one on
some rows by chance. So the rows are split twice, near a third and after the first row, and a trial that shows a
difference decides.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import keras
import numpy as np
import tensorflow as tf

from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat import planted
from tfdist.compat.keras import keras_trainer, keras_variables, layer_methods
from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.errors import UnsupportedError
from tfdist.monitor.phases import Phase
from tfdist.monitor.process_clock import step_clock
from tfdist.training.checks import advice, kept_verdicts, row_mixing, trial_key, tried_step
from tfdist.training.checks.code_fingerprint import OpaqueError
from tfdist.training.checks.kept_verdicts import Shelf, Tried
from tfdist.training.checks.tried_step import Assignment, Key, Run, TriedStep
from tfdist.training.replica import batch_rows, current_step, judging, replica_step
from tfdist.training.replica.judging import NO_RULES, Rules, StateRule, Verdict

# largest relative differences that are rounding: of gradients, which are sums of many products, and of all else
_OF_GRADIENTS, _OF_NUMBERS, _IN_16_BITS = 1e-3, 1e-4, 5e-2

_log = logging.getLogger("tfdist")
_ROWS = 16
# more than a step has gradients or losses
_MANY = 1000
_SETTLED_BY_HAND = ("gradient", "loss", "values")
# kinds of values that a step may be unable to compute from parts of a batch
_MAY_FAIL = ("loss", "values", "added", "number")
# verdicts of the variables of a metric that are right as they are, by what the variables declare
_RIGHT_FOR_METRICS: Mapping[str, tuple[Verdict, ...]] = {
    "sum": ("sum", "unknown"),
    "mean": ("mean", "equal", "unknown"),
}
# of the others the first replica's are kept, which may have no examples
_RIGHT_FOR_ONE: tuple[Verdict, ...] = ("unknown",)

Found = dict[Key, StateRule]
Parts = list[tuple[float, Run]]


@dataclass(frozen=True)
class Runs:
    """The results of a step on the same rows, given in several ways.

    ``twice`` is None where that cannot be compared. ``partitions`` have the share of each part; there are no parts of
    one row. ``failure`` is the error of the step on parts, if no parts could be computed.
    """

    whole: Run
    twice: Run | None
    partitions: list[Parts]
    failure: Exception | None = None

    @classmethod
    def of(cls, tried: TriedStep, data: Any, *, rules: Rules = NO_RULES) -> Self:
        # Rows given twice tell nothing of a step that gathers: what it gathers would be there twice.
        is_comparable = not tried.asked.meets or tried.is_random
        whole = tried(data)
        partitions, failure = _partitions(tried, data, rules, is_fed=False)
        try:
            twice = tried(tried_step.joined(data, data)) if is_comparable else None
        except tf.errors.InvalidArgumentError:  # code that is written for one number of rows
            if failure is None or tried.asked.assignments:
                raise
            twice = None
        return cls(whole, twice, partitions, failure)

    def fed_to(self, tried: TriedStep, data: Any) -> "Runs":
        """Return the runs of the step with parts that are fed the states of the whole."""
        return Runs(self.whole, None, *_partitions(tried, data, NO_RULES, is_fed=True))


def _partitions(tried: TriedStep, data: Any, rules: Rules, *, is_fed: bool) -> tuple[list[Parts], Exception | None]:
    """Return the partitions whose parts could be computed; an error if there are none, as for the k largest losses."""
    count = int(batch_rows.rows_of(data))

    def parts(cut: int) -> Parts:
        bounds = ((0, cut), (cut, count))
        rows = [batch_rows.slice_rows(data, tf.constant(begin), tf.constant(end)) for begin, end in bounds]
        meets = tried.asked.meets
        runs = tried.of_parts(rows, rules, is_fed=is_fed) if meets else [tried(one, is_fed=is_fed) for one in rows]
        return [((end - begin) / count, run) for (begin, end), run in zip(bounds, runs, strict=True)]

    found: list[Parts] = []
    failure: Exception | None = None
    for cut in sorted({count // 3 or 1, 1}, reverse=True) if count > 1 else ():
        try:
            found.append(parts(cut))
        except tf.errors.InvalidArgumentError as error:
            failure = failure or error
    return (found, None) if found else ([[]], failure)


def _suspects(tried: TriedStep) -> list[Key]:
    """Return the values of which one, or several, cannot be computed from parts of a batch.

    With Keras' own step gradients are those of a stand-in for the loss, so they fail only if there is nothing else.
    """
    names = tried.asked.names
    is_layers = not any(key[0] in (*_MAY_FAIL, "metric") for key in names)
    kinds = ("gradient", *_MAY_FAIL) if is_layers or tried.has_own_step else _MAY_FAIL
    return [key for key in names if key[0] in kinds and not (key[0] == "number" and names[key] in tried.of_losses)]


def _verdicts(tried: TriedStep, runs: Runs, *, in_16_bits: bool) -> dict[Key, Verdict]:
    suspects = _suspects(tried) if runs.failure is not None else ()

    def verdict(key: Key, parts: Parts) -> Verdict:
        if key in suspects:
            return "neither"
        tolerance = _OF_GRADIENTS if key[0] == "gradient" else _OF_NUMBERS
        return judging.judge(
            runs.whole.values[key],
            [(share, run.values[key]) for share, run in parts],
            None if runs.twice is None else runs.twice.values[key],
            tolerance=_IN_16_BITS if in_16_bits else tolerance,
            is_random=tried.is_random,
        )

    return {key: judging.agreed([verdict(key, parts) for parts in runs.partitions]) for key in tried.asked.names}


def _rules(tried: TriedStep, runs: Runs, *, in_16_bits: bool) -> list[StateRule]:
    made = tried.asked.assignments
    return [_rule(number, one, tried, runs, in_16_bits=in_16_bits) for number, one in enumerate(made)]


def _rule(number: int, assignment: Assignment, tried: TriedStep, runs: Runs, *, in_16_bits: bool) -> StateRule:
    every = [runs.whole, *(run for parts in runs.partitions for _, run in parts)]
    factors = [factor for run in every for factor in run.states[number][2:]]
    kept = float(np.mean(factors))
    is_one = max(factors) - min(factors) <= 1e-6 * abs(kept)
    found = [
        judging.judge_state(
            runs.whole.states[number][:2],
            [(share, run.states[number][:2]) for share, run in parts],
            None if runs.twice is None else runs.twice.states[number][:2],
            dependence=assignment.dependence if is_one else "other",
            kept=kept,
            tolerance=_IN_16_BITS if in_16_bits else _OF_NUMBERS,
            is_random=tried.is_random,
        )
        for parts in runs.partitions
    ]
    verdict = judging.agreed(found)
    base = {"none": 0.0, "scaled": kept}.get(assignment.dependence, 1.0)
    return StateRule(verdict, base if verdict == "sum" else 1.0)


def warn_once(model: keras.Model, workers: Workers, sentence: str) -> None:
    """Let the chief warn, once for each model."""
    said = planted.of_model(model).said
    if sentence not in said and workers.is_chief:
        step_clock().warn(sentence)
    said.add(sentence)


def warn_of_parts(model: keras.Model, workers: Workers, part: str | None = row_mixing.OF_REPLICAS) -> None:
    """Let the chief warn once of layers that normalize by the rows of ``part``, or blend them; None: a whole batch."""
    for found, of in ((row_mixing.normalizing, advice.of_statistics), (row_mixing.blending, advice.of_blends)):
        if part is not None and (names := found(model)):
            warn_once(model, workers, of(model, names, part))


def tolerance_of_outputs(model: keras.Model) -> float:
    return _IN_16_BITS if keras_trainer.computes_in_16_bits(model) else _OF_NUMBERS


class Probe:
    """The rules of a model's steps, found before the first step."""

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        workers: Workers,
        user_step: Callable[[Any], Any],
        unseeded: Any,
        *,
        replicas: int,
        training: bool,
        gathers: bool,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._workers = workers
        self._user_step = user_step
        self._step = replica_step.ReplicaStep(model, user_step, unseeded, training=False)
        self._replicas = replicas
        self._training = training
        self._gathers = gathers and not model.jit_compile
        self._done = False
        #: how the replicas' results are combined
        self.rules = Rules()
        #: sentences about results that cannot be combined
        self.neither: list[str] = []
        self._uses: dict[Key, str] = {}
        self._holds = False  # whether the verdicts hold for other rows and weights too

    @property
    def is_due(self) -> bool:
        """Whether `look` has something to find out."""
        if self._done:
            return False
        if getattr(self._user_step, "adds_up_over_replicas", False):  # tfdist's own step, which settles all itself
            self._done = True
            return False
        settled = self._strategy.loss_reduction
        if settled == "sum":
            kind = "gradient" if keras_trainer.has_own_train_step(self._model) else "loss"
            self.rules = Rules({(kind, number): "sum" for number in range(_MANY)})
        self._done = self._replicas == 1 or not (
            self._has_unknown(settled) or (settled == "detect" and row_mixing.suspects(self._model))
        )
        return not self._done

    def _has_unknown(self, settled: str) -> bool:
        """True if the step runs code of the user's, whose results nothing declares."""
        model = self._model
        if settled == "detect" and keras_trainer.reduces_by_itself(model, self._user_step):
            return True
        layers = keras_trainer.layers(model)
        if any(layer_methods.may_add_losses(one) or layer_methods.has_metrics(one) for one in layers):
            return True
        if any(metric_weights.is_unknown(metric) for metric in keras_trainer.metrics(model)):
            return True
        return self._training and bool(keras_variables.states_of_users(model))

    @property
    def needs_whole_batch(self) -> bool:
        """Whether some result is right only if one worker computes a whole batch."""
        rules = self.rules.states.values()
        plain = ("mean", "sum", "equal", "unknown")
        return bool(self.neither) or any(
            rule.verdict not in plain or rule.at_once or (rule.verdict == "sum" and rule.kept != 1.0) for rule in rules
        )

    def look(self, slices: Sequence[tuple[Any, Any]]) -> bool:
        """Try the step on rows of this worker's data, and agree with the others; True if all is a mean."""
        self._done = True
        step_clock().enter(Phase.TRACE)
        is_cut = any(sharded_variable.sharding_of(weight) is not None for weight in self._model.weights)
        if not self._has_unknown(self._strategy.loss_reduction) and not self._mixes_rows(slices, is_cut):
            return True
        shelf = Shelf()
        key = self._key(slices, is_cut) if shelf.is_open else None
        known = self._known(shelf, key)
        if known is None:
            known = self._tried(slices, is_cut)
            if key is not None and self._holds:
                shelf.put(key, known)
            elif key is not None:
                _log.debug("tfdist: what is found out of %r is not kept: values may change it", self._model.name)
        self._uses = known.uses
        self._settle(known.found, known.names)
        return all(verdict == "mean" for verdict in self.rules.values.values()) and not self.rules.states

    def _key(self, slices: Sequence[tuple[Any, Any]], is_cut: bool) -> str | None:
        """Return the key of this step's verdicts; None if they are not kept."""
        data = next((data for rows, data in slices if int(rows)), None)
        if data is None or getattr(self._strategy, "tee", None) is not None:  # a step that is compared is tried
            return None
        how = {
            "strategy": type(self._strategy).__name__,
            "loss_reduction": self._strategy.loss_reduction,
            "replicas": self._replicas,
            "worker": [self._workers.index, self._workers.count],
            "training": self._training,
            "gathers": self._gathers,
            "is_cut": is_cut,
        }
        try:
            return trial_key.key_of(self._model, self._user_step, data, how)
        except OpaqueError as error:
            _log.debug("tfdist: what is found out of %r is not kept: %s", self._model.name, error)
            return None

    def _known(self, shelf: Shelf, key: str | None) -> Tried | None:
        """Return the kept verdicts, if all workers have kept the same."""
        mine = None if key is None else shelf.take(key)
        told = [0, 0] if mine is None else kept_verdicts.as_numbers(mine)
        every = self._workers.gather(told)
        if mine is None or not every.all() or not (every == every[0]).all():
            return None
        _log.info("tfdist: what was found out of %r at an earlier start is used again", self._model.name)
        return mine

    def _tried(self, slices: Sequence[tuple[Any, Any]], is_cut: bool) -> Tried:
        found: Found = {}
        names: dict[Key, str] = {}
        why = None
        if (data := self._few(slices, is_cut)) is not None:
            try:
                try:
                    found, names = self._try(data, is_cut)
                except tf.errors.ResourceExhaustedError:
                    found, names = self._try(tried_step.some_of(slices, 2), is_cut)
                except tf.errors.InvalidArgumentError:  # it may need more rows than are tried
                    rows = sum(int(count) for count, _ in slices)
                    if is_cut or rows <= _ROWS:
                        raise
                    found, names = self._try(tried_step.some_of(slices, rows), is_cut)
            except advice.DecidesAloneError as error:
                sentence = advice.of_condition(self._model, str(error))
                raise UnsupportedError(sentence, name=self._model.name, received=str(error)) from None
            except Exception as error:  # noqa: BLE001 - the user's code, on fewer rows than it is written for
                tried_step.made_variables(self._strategy)
                why = error
        agreed = self._agree(found)
        if why is not None and self._workers.is_chief:
            step_clock().warn(advice.untried(self._model, why))
        return Tried(agreed, names, self._uses)

    def _few(self, slices: Sequence[tuple[Any, Any]], is_cut: bool) -> Any:
        wanted = _ROWS
        if is_cut:  # every run needs all workers, so all try as many rows
            wanted = min(wanted, int(self._workers.gather([sum(int(rows) for rows, _ in slices)]).min()))
        return tried_step.some_of(slices, wanted)

    def _mixes_rows(self, slices: Sequence[tuple[Any, Any]], is_cut: bool) -> bool:
        """Return whether layers mix the rows of some worker's data; also if that could not be tried."""
        mixes = False
        if (data := self._few(slices, is_cut)) is not None and int(batch_rows.rows_of(data)) > 1:
            tolerance = tolerance_of_outputs(self._model)
            how = row_mixing.Pass(training=self._training, tolerance=tolerance, meets=is_cut)
            try:
                mixes = row_mixing.mixes(self._model, self._strategy, data, how)
            except Exception as error:  # noqa: BLE001 - the user's code, on fewer rows than it is written for
                tried_step.made_variables(self._strategy)
                _log.debug("tfdist: whether %r mixes rows could not be tried: %s", self._model.name, error)
                mixes = True
        return bool(self._workers.gather([int(mixes)]).max())

    def warn(self) -> None:
        """Warn once about each result that cannot be combined."""
        for sentence in dict.fromkeys(self.neither):
            warn_once(self._model, self._workers, sentence)

    def _settle(self, agreed: Found, names: dict[Key, str]) -> None:
        """Turn verdicts into rules, and results without a rule into sentences."""
        settled = self._strategy.loss_reduction
        values = dict(self.rules.values)
        # A loss that is logged, too, is said once.
        of_losses = any(rule.verdict == "neither" and key[0] in _SETTLED_BY_HAND for key, rule in agreed.items())
        for key, rule in agreed.items():
            if key[0] == "state" or (settled != "detect" and key[0] in _SETTLED_BY_HAND):
                continue
            values[key] = rule.verdict
            if key in self._uses:
                self.neither.append(self._uses[key])
            elif rule.verdict == "neither" and not (key[0] == "log" and of_losses):
                is_of_keras = key[0] == "gradient" and not keras_trainer.has_own_train_step(self._model)
                suspects = row_mixing.suspects(self._model) if is_of_keras else []
                kind = "layers" if suspects else "gradients of layers" if is_of_keras else key[0]
                self.neither.append(advice.of(kind, ", ".join(suspects) or names.get(key, ""), self._model))
        states = {key[1]: rule for key, rule in agreed.items() if key[0] == "state"} if self._training else {}
        paths = [variable.path for variable in keras_variables.states(self._model)]
        unknown = [paths[number] for number, rule in states.items() if rule.verdict == "neither"]
        self.neither += [advice.of("state", path, self._model) for path in unknown]
        self.rules = Rules(values, states)

    def _agree(self, found: Found) -> Found:
        """Return the verdicts of all workers; some may have had no examples, or could not try them."""
        mine = [
            number
            for (kind, place), rule in found.items()
            for number in (
                current_step.KINDS.index(kind),
                place,
                judging.VERDICTS.index(rule.verdict),
                int(np.float32(rule.kept).view(np.int32)),
                int(rule.at_once),
            )
        ]
        longest = int(self._workers.gather([len(mine)]).max())
        table = self._workers.gather(mine + [-1] * (longest - len(mine))) if longest else np.zeros((1, 0), int)
        said: dict[Key, list[StateRule]] = {}
        for kind, place, verdict, kept, at_once in table.reshape(-1, 5).tolist():
            if kind >= 0:
                rule = StateRule(judging.VERDICTS[verdict], float(np.int32(kept).view(np.float32)), bool(at_once))
                said.setdefault((current_step.KINDS[kind], place), []).append(rule)
        return {key: judging.agreed_rule(rules) for key, rules in said.items()}

    def _try(self, data: Any, is_cut: bool) -> tuple[Found, dict[Key, str]]:
        in_16_bits = keras_trainer.computes_in_16_bits(self._model)
        how: dict[str, Any] = {"meets_others": is_cut, "training": self._training}
        tried = TriedStep(self._model, self._strategy, self._step, data, **how)
        runs = Runs.of(tried, data)
        values = _verdicts(tried, runs, in_16_bits=in_16_bits)
        if self._somewhere(tried.asked.meets and "neither" in values.values(), is_cut):
            # Values that replicas exchange in the step may belong to a sum, which is exchanged in another way.
            sums: dict[Key, Verdict] = {key: "sum" for key, verdict in values.items() if verdict in ("sum", "neither")}
            runs = Runs.of(tried, data, rules=Rules(sums))
            values = _verdicts(tried, runs, in_16_bits=in_16_bits)
        states = _rules(tried, runs, in_16_bits=in_16_bits)
        neither = "neither" in values.values() or any(rule.verdict == "neither" for rule in states)
        put_together = {n: runs.whole.states[n][1] for n, rule in enumerate(states) if rule.verdict != "neither"}
        at_once = False
        unsettled = neither and put_together and self._training and not self._model.jit_compile
        if self._somewhere(bool(unsettled), is_cut):
            # A result that follows from states which the step itself combines is right if those states are.
            again = TriedStep(self._model, self._strategy, self._step, data, **how, fed=put_together)
            fed = runs.fed_to(again, data)
            of_values = _verdicts(again, fed, in_16_bits=in_16_bits)
            better = {key: of_values[key] for key, verdict in values.items() if verdict == "neither"}
            later = _rules(again, fed, in_16_bits=in_16_bits)
            mended = [old.verdict == "neither" != new.verdict for old, new in zip(states, later, strict=True)]
            values |= better
            states = [new if mend else old for old, new, mend in zip(states, later, mended, strict=True)]
            at_once = any(mended) or any(verdict != "neither" for verdict in better.values())
        decided = {key: one for key, one in tried.asked.decisions.items() if values[key] != "neither"}
        values |= dict.fromkeys(decided, "neither")
        found = {key: StateRule(self._rule_of_value(key, verdict, tried)) for key, verdict in values.items()}
        has_failed = runs.failure is not None
        found |= self._states(tried.asked, states, at_once=at_once, has_failed=has_failed)
        self._uses = {**self._sentences(tried, runs, found, decided), **tried.asked.uses}
        self._holds = not at_once and _holds(tried, values, states)
        return found, tried.asked.names

    def _sentences(self, tried: TriedStep, runs: Runs, found: Found, decided: dict[Key, str]) -> dict[Key, str]:
        """Return sentences about values of which this trial knows more than that they are neither mean nor sum."""
        names, sentences = tried.asked.names, dict[Key, str]()
        for key in [key for key, rule in found.items() if rule.verdict == "neither" and key in names]:
            if key in decided:
                sentences[key] = advice.of_decision(key[0], names[key], self._model, decided[key])
            elif runs.failure is not None and key in _suspects(tried):
                sentences[key] = advice.of_failure(key[0], names[key], self._model, runs.failure)
            elif key in tried.asked.gatherable and self._model.jit_compile:
                sentences[key] = advice.of(key[0], names[key], self._model)
            if key in tried.asked.gatherable and self._model.jit_compile:
                sentences[key] += advice.WITHOUT_XLA
        return sentences

    def _somewhere(self, wanted: bool, is_cut: bool) -> bool:
        """True if a further run is wanted; where weights are sharded, if any worker wants it."""
        return bool(self._workers.gather([int(wanted)]).max()) if is_cut else wanted

    def _rule_of_value(self, key: Key, verdict: Verdict, tried: TriedStep) -> Verdict:
        """Return the rule of a value: one that is neither a mean nor a sum may be one of the whole batch."""
        return "whole" if verdict == "neither" and key in tried.asked.gatherable and self._gathers else verdict

    def _states(self, asked: tried_step.Asked, rules: list[StateRule], *, at_once: bool, has_failed: bool) -> Found:
        """Return the rule of each state, and the verdict on each metric of the user's.

        A metric that may be what failed on parts of a batch is given the rows of all replicas, if they can be gathered.
        """
        of_state: dict[Key, list[StateRule]] = {}
        found: Found = {}
        for assignment, rule in zip(asked.assignments, rules, strict=True):
            is_wrong = rule.verdict not in _RIGHT_FOR_METRICS.get(assignment.aggregation, _RIGHT_FOR_ONE)
            if assignment.key[0] == "state":
                of_state.setdefault(assignment.key, []).append(rule)
            elif is_wrong or has_failed:
                if self._gathers and assignment.key in asked.gatherable:
                    found[assignment.key] = StateRule("whole")
                elif is_wrong and rule.verdict != "equal":
                    found[assignment.key] = StateRule("neither")
        for key, several in of_state.items():
            rule = judging.agreed_rule(several)
            found[key] = StateRule(rule.verdict, rule.kept, at_once or (len(several) > 1 and rule.kept != 1.0))
        return found


def _holds(tried: TriedStep, values: dict[Key, Verdict], states: list[StateRule]) -> bool:
    """True if verdicts hold for all rows and weights.

    The graph shows a mean or a sum; one example shows that a value is neither.
    """
    if tried.makes_variables:
        return False
    shown: dict[Key, Verdict] = {key: "mean" if found == "equal" else found for key, found in tried.asked.shown.items()}
    # a metric that counts by itself is judged by its states; its value has no meaning
    pairs = [(verdict, shown[key]) for key, verdict in values.items() if key[0] != "metric"]
    pairs += [(rule.verdict, one.shown) for rule, one in zip(states, tried.asked.assignments, strict=True)]
    return all(
        found == verdict != "unknown" or (verdict == "neither" and found == "unknown") for verdict, found in pairs
    )
