"""Runs of a step that is tried, on rows and on parts of them, and what follows from how they differ.

A value that is no mean and no sum may look like one on some rows by chance. So the rows are parted twice, once near a
third of them and once behind the first one, and a trial that shows a difference decides.
"""

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import tensorflow as tf

from tfdist.training.checks import tried_step
from tfdist.training.checks.tried_step import Assignment, Key, Run, TriedStep
from tfdist.training.replica import batch_rows, judging
from tfdist.training.replica.judging import Rules, StateRule, Verdict

# largest relative differences that are rounding: of gradients, which are sums of many products, and of all else
_OF_GRADIENTS, _OF_NUMBERS, _IN_16_BITS = 1e-3, 1e-4, 5e-2

_NO_RULES = Rules()

Parts = list[tuple[float, Run]]


@dataclass(frozen=True)
class Runs:
    """What a step makes of the same rows, given in several ways.

    Attributes:
        whole: of all rows.
        twice: of all rows given twice; None where that cannot be compared.
        partitions: of the parts of the rows, with the share of each; one without parts where there is one row.
    """

    whole: Run
    twice: Run | None
    partitions: list[Parts]

    @classmethod
    def of(cls, tried: TriedStep, data: Any, *, rules: Rules = _NO_RULES) -> Self:
        """Run a step."""
        # Rows given twice tell nothing of a step that gathers: what it gathers would be there twice.
        is_comparable = not tried.asked.meets or tried.is_random
        twice = tried(tried_step.joined(data, data)) if is_comparable else None
        return cls(tried(data), twice, _partitions(tried, data, rules, is_fed=False))

    def fed_to(self, tried: TriedStep, data: Any) -> "Runs":
        """Return the same of a step to which parts are fed the states that the whole has made."""
        return Runs(self.whole, None, _partitions(tried, data, _NO_RULES, is_fed=True))


def _partitions(tried: TriedStep, data: Any, rules: Rules, *, is_fed: bool) -> list[Parts]:
    count = int(batch_rows.rows_of(data))

    def parts(cut: int) -> Parts:
        bounds = ((0, cut), (cut, count))
        rows = [batch_rows.slice_rows(data, tf.constant(begin), tf.constant(end)) for begin, end in bounds]
        meets = tried.asked.meets
        runs = tried.of_parts(rows, rules, is_fed=is_fed) if meets else [tried(one, is_fed=is_fed) for one in rows]
        return [((end - begin) / count, run) for (begin, end), run in zip(bounds, runs, strict=True)]

    return [parts(cut) for cut in sorted({count // 3 or 1, 1})] if count > 1 else [[]]


def values(tried: TriedStep, runs: Runs, *, in_16_bits: bool) -> dict[Key, Verdict]:
    """Return the verdict on each value that a step asks for."""

    def verdict(key: Key, parts: Parts) -> Verdict:
        tolerance = _OF_GRADIENTS if key[0] == "gradient" else _OF_NUMBERS
        return judging.judge(
            runs.whole.values[key],
            [(share, run.values[key]) for share, run in parts],
            None if runs.twice is None else runs.twice.values[key],
            tolerance=_IN_16_BITS if in_16_bits else tolerance,
            is_random=tried.is_random,
        )

    return {key: judging.agreed([verdict(key, parts) for parts in runs.partitions]) for key in tried.asked.names}


def states(tried: TriedStep, runs: Runs, *, in_16_bits: bool) -> list[StateRule]:
    """Return the rule of each assignment of a state."""
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
