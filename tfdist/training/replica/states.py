"""States of layers and models in a tfdist scope, which are equal on all replicas and to those of one device.

All replicas start a step with equal states and change them by their own examples. Keras' own layers keep moving
averages, which are linear in statistics of the batch: the average of the replicas' states is that of one device. Rules
for the states of other code are found by trying (`step_probe`): changes are added up, the largest or the last value is
taken, or the states are combined inside the step, where the step uses what it has assigned (a codebook made of counts).
"""

import functools
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tfdist.collectives.wire_dtypes import has_fractions
from tfdist.compat.keras import keras_variables
from tfdist.compat.tensorflow import traced_uses
from tfdist.gradients.reduction import replica_sums
from tfdist.training.replica import current_step
from tfdist.training.replica.judging import StateRule

_MEAN = StateRule("mean")
# a value of one replica is taken, or the largest or smallest of them
_CHOSEN = ("maximum", "minimum", "last")


def rule_of(current: current_step.Step, number: int, variable: keras.Variable) -> StateRule:
    """Return the rule of the state with this number among `keras_variables.states`."""
    known = current.rules.states.get(number)
    if known is not None and known.verdict not in ("neither", "unknown"):
        return known
    # Not known: an average where there is one, as of moving statistics.
    return _MEAN if has_fractions(tf.as_dtype(variable.dtype)) else StateRule("last")


def adapt(model: keras.Model) -> None:
    """Let replicas combine states at each assignment, if a step uses the values that it has assigned."""
    for number, variable in enumerate(keras_variables.states(model)):
        keras_variables.override_assign(variable, functools.partial(_assigned, number))


def _assigned(number: int, variable: keras.Variable, value: Any) -> Any:
    """Return the value that an assignment gives a state, on every replica."""
    current = current_step.current()
    if current is None or current.noted is not None or current.is_one_program or not current.rules.states:
        return value
    rule = rule_of(current, number, variable)
    if not rule.at_once or traced_uses.in_condition():
        return value
    value = tf.cast(tf.convert_to_tensor(value), variable.dtype)
    former = tf.convert_to_tensor(variable.value)
    if rule.verdict in _CHOSEN:
        return _chosen([value], [rule], current, f"state {number}")[0]
    (total,) = current.sum_in_the_middle([_part(value, former, rule, current)], what=f"the state {variable.path!r}")
    return _whole(total, former, rule)


def before(model: keras.Model, current: current_step.Step) -> dict[int, tf.Tensor]:
    """Return the present values of the states whose changes will be added up, by number."""
    numbered = enumerate(keras_variables.states(model))
    rules = [(number, variable, rule_of(current, number, variable)) for number, variable in numbered]
    return {number: tf.identity(variable.value) for number, variable, rule in rules if rule.verdict == "sum"}


class Moved:
    """The states that a step has changed, which has just ended on this replica."""

    def __init__(self, model: keras.Model, current: current_step.Step, before: Mapping[int, tf.Tensor]) -> None:
        every = keras_variables.states(model)
        moved = traced_uses.assigned(every)
        self._current = current
        self._before = before
        self._summed: list[tuple[int, keras.Variable, StateRule]] = []
        self._chosen: list[tuple[int, keras.Variable, StateRule]] = []
        for number, variable in enumerate(every):
            rule = rule_of(current, number, variable)
            if rule.at_once or not any(variable is one for one in moved):
                continue
            if rule.verdict == "equal" and not tf.as_dtype(variable.dtype).is_floating:
                continue  # floats are averaged, so that what rounding makes of them stays equal
            (self._chosen if rule.verdict in _CHOSEN else self._summed).append((number, variable, rule))
        #: the parts to be summed over replicas, with the other sums of a step
        self.parts = [
            _part(tf.convert_to_tensor(variable.value), before.get(number), rule, current)
            for number, variable, rule in self._summed
        ]

    def assign(self, sums: list[tf.Tensor]) -> None:
        for (number, variable, rule), total in zip(self._summed, sums, strict=True):
            variable.assign(_whole(total, self._before.get(number), rule))
        if not self._chosen:
            return
        values = [tf.convert_to_tensor(variable.value) for _, variable, _ in self._chosen]
        found = _chosen(values, [rule for _, _, rule in self._chosen], self._current, "states")
        for (_, variable, _), value in zip(self._chosen, found, strict=True):
            variable.assign(value)


def _part(value: tf.Tensor, former: tf.Tensor | None, rule: StateRule, current: current_step.Step) -> tf.Tensor:
    """Return a replica's contribution to a state over all replicas."""
    if rule.verdict != "sum":
        return replica_sums.weighted(value, current.share)
    change = value - _kept(former, rule)
    return tf.where(current.rows > 0, change, tf.zeros_like(change))


def _whole(total: tf.Tensor, former: tf.Tensor | None, rule: StateRule) -> tf.Tensor:
    return total if rule.verdict != "sum" else total + _kept(former, rule)


def _kept(former: tf.Tensor | None, rule: StateRule) -> tf.Tensor:
    assert former is not None
    return former if rule.kept == 1.0 else former * tf.cast(rule.kept, former.dtype)


def _chosen(values: list[tf.Tensor], rules: list[StateRule], current: current_step.Step, label: str) -> list[tf.Tensor]:
    """Return for each state the value of one replica with examples: the largest, the smallest, or the last one's."""
    gathered = replica_sums.gathered_from_replicas([*values, current.present], label)
    *stacks, present = gathered
    there = present > 0
    last = tf.reduce_max(tf.where(there, tf.range(tf.size(present)), 0))

    def choose(stack: tf.Tensor, rule: StateRule) -> tf.Tensor:
        counted = tf.boolean_mask(stack, there) if stack.dtype != tf.bool else tf.gather(stack, [last])
        if rule.verdict == "maximum":
            return tf.reduce_max(counted, axis=0)
        if rule.verdict == "minimum":
            return tf.reduce_min(counted, axis=0)
        return tf.gather(stack, last)

    return [choose(stack, rule) for stack, rule in zip(stacks, rules, strict=True)]
