"""The current step of a replica: its number of examples, that of all replicas, and its share, which is the quotient."""

import contextlib
import functools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Protocol

import tensorflow as tf

from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import replica_sums
from tfdist.monitor.process_clock import step_clock
from tfdist.training.replica.judging import NO_RULES, Rules, Verdict

_current = threading.local()

#: the kinds of values for which `Step.rule_of` is called, and of results that a step leaves in states
KINDS = ("gradient", "loss", "values", "added", "number", "log", "state", "metric", "count")

_TAKEN_EARLY = (
    "A train_step applies the gradient of a mean over the batch and the gradient of a sum, and code that replicas "
    "compute together (synchronized normalization, all_gather) may have sent both back with one weight. The numbers "
    "are those of one device if each gradient is applied before the next one is taken, or if all losses are means or "
    "all are sums."
)


class Sink(Protocol):
    """The destination of the results of a replica's step."""

    def begin(self, current: "Step", *, asks: bool) -> None:
        """Prepare for a step, which has just begun.

        Args:
            current: the step.
            asks: whether the step may ask metrics for their results before it ends, see `Step.result_of`.
        """

    def apply(self, optimizer: Any, gradients: list[Any], variables: Any) -> None:
        """Take this replica's gradients, or None, for an optimizer, and the variables of the gradients."""

    def end(self, logs: Any) -> Any:
        """Return the replica's result, given that of the user's step."""


class Group(Protocol):
    """The replicas that share a step, as `replica_sums.Replicas`; all call its methods in the same order."""

    @property
    def size(self) -> int:
        """The number of replicas."""

    @property
    def index(self) -> int:
        """The number of this replica."""

    def rows(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the rows of all replicas, in order; their numbers of rows may differ."""

    def total(self, tensor: tf.Tensor, label: str) -> tf.Tensor:
        """Return the sum over all replicas; its shape may differ between steps."""


class Step:
    """A replica's share of a step, which is current while the user's `train_step` or `test_step` runs.

    Inside it the code runs as on one device. The strategy reports one replica, so Keras neither divides losses by the
    number of replicas nor multiplies them back, and a loss is the mean over this replica's examples. Contributions of
    replicas are then weighted by `share`, so their sum over replicas is the mean over all examples.

    If a batch is smaller than the number of replicas, a replica has no examples. It computes on a copy of one, because
    kernels and statistics are not made for empty batches. Its share is zero, and its counts are dropped.
    """

    def __init__(
        self,
        *,
        rows: tf.Tensor,
        global_rows: tf.Tensor | None,
        weighs_loss: bool = False,
        index: tf.Tensor | None = None,
        rules: Rules = NO_RULES,
        all_reduce: Callable[[list[Any]], list[Any]] = replica_sums.sum_over_replicas,
        group: "Group | None" = None,
        sink: "Sink | None" = None,
    ) -> None:
        self.all_reduce = all_reduce
        self.group = replica_sums.Replicas() if group is None else group
        #: the number of times that the step has gathered rows or reduced gradients before its end
        self.meetings = 0
        self.sink = sink
        #: makes the context in which the step communicates with other replicas
        self.meeting: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
        self.rows = rows
        self.index = index
        self.weighs_loss = weighs_loss
        if global_rows is None:
            # The sum begins first, so it travels while the forward pass computes. It is a float, because an integer
            # on a GPU is in the host's memory, which NCCL cannot access.
            (total,) = all_reduce([tf.cast(rows, tf.float32)])
            global_rows = tf.cast(total, tf.int32)
        self.global_rows = global_rows
        #: this replica's part of the examples, float64 scalar; the shares of all replicas sum to 1
        self.share = tf.math.divide_no_nan(tf.cast(self.rows, tf.float64), tf.cast(self.global_rows, tf.float64))
        #: 1 if this replica has examples, otherwise 0, float32 scalar
        self.present = tf.cast(self.rows > 0, tf.float32)
        #: whether Keras weights the batch's loss by the rows of an input that every replica has whole
        self.counts_by_whole = False
        #: optimizers whose loss was weighted by `share` before its gradient was taken
        self.weighted: set[int] = set()
        #: optimizers that are given gradients by an `apply_gradients` of the user's
        self.in_pairs: set[int] = set()
        #: those of them that are given the gradients of the global batch now
        self.finished: set[int] = set()
        #: the optimizer that updates weights now, which must draw the same random numbers on all replicas
        self.updating: Any = None
        #: returns the result of a metric when the step asks for it; None leaves that to the metric
        self.result_of: Callable[[Any], Any] | None = None
        #: if the step is only tried: called with kind, number, name, value and `can_gather` of each call of `rule_of`
        self.noted: Callable[[str, int, str, Any, bool], None] | None = None
        #: if the step is only tried: whether it is a `test_step`, which has no gradients
        self.is_evaluation = False
        #: gathered rows of all replicas, with the tensor from which they were gathered, by its identity
        self.gathered: dict[int, tuple[Any, Any]] = {}
        #: whether the current trace becomes one program of XLA, see `compiled`
        self.is_one_program = False
        #: metrics whose results in the logs are of this replica alone, and must be replaced by those of all
        self.replaced_results: list[str] = []
        #: number of draws from each generator of random numbers, by its identity
        self.draws: Counter[int] = Counter()
        self.rules = rules
        self._asked: Counter[str] = Counter()
        self._passed: set[int] = set()  # numbers of the gradients that flowed through other replicas

    @contextlib.contextmanager
    def own_results(self) -> Iterator[None]:
        """Let metrics give their own results in the block: one may ask others that it is made of."""
        asked, self.result_of = self.result_of, None
        try:
            yield
        finally:
            self.result_of = asked

    def rule_of(self, kind: str, value: Any, *, name: str = "", can_gather: bool = False) -> Verdict:
        """Return the rule that combines the values of replicas into the value of all examples.

        Values of a kind are identified by their order, which is the same in every trace of the step.
        """
        number = self._asked[kind]
        self._asked[kind] += 1
        if self.noted is not None:
            self.noted(kind, number, name, value, can_gather)
        return self.rules.values.get((kind, number), "mean")

    def next_rule(self, kind: str) -> Verdict:
        """Return what `rule_of` returns for the next value of a kind."""
        return self.rules.values.get((kind, self._asked[kind]), "mean")

    def is_sum(self, kind: str, value: Any, *, name: str = "") -> bool:
        return self.rule_of(kind, value, name=name) == "sum"

    def has_row_of_each(self, values: tf.Tensor) -> bool:
        """Return True if it is known, before the step runs, that values have a row for each example."""
        return False

    def sum_in_the_middle(self, tensors: list[Any], *, what: str) -> list[Any]:
        """Return the sums over replicas, before gradients are known."""
        if self.is_one_program:
            raise cannot_add_up(what)
        with self.meeting():
            return self.all_reduce(tensors)

    def require_others(self, what: str) -> None:
        """Raise if the other replicas cannot be reached in the middle of the step."""
        if self.is_one_program:
            raise cannot_add_up(what)
        if self.group.size == 1:
            self.all_reduce([])  # raises if a part of a batch cannot reach others

    def weight_of(self, kind: str, value: Any, *, name: str = "") -> tf.Tensor:
        """Return the weight of this replica's value: the weighted sum over replicas is the value of one device."""
        rule = self.rule_of(kind, value, name=name)
        if kind == "gradient":
            self._check_order(self._asked[kind] - 1, rule)
        return self._weight_by(rule)

    def pairing(self, optimizer: Any) -> contextlib.AbstractContextManager[None]:
        """Record in the block that an optimizer is given gradients by an `apply_gradients` of the user's."""
        return _among(self.in_pairs, optimizer)

    def finishing(self, optimizer: Any) -> contextlib.AbstractContextManager[None]:
        """Let the optimizer apply what it is given in the block without another reduction."""
        return _among(self.finished, optimizer)

    def will_apply_reduced(self) -> None:
        """Record that the next gradient is reduced: replicas weight it as a mean, whatever its loss was."""
        self._passed.add(self._asked["gradient"])

    def _check_order(self, number: int, rule: Verdict) -> None:
        """Warn of a gradient that may have flowed through other replicas with the weight of another gradient."""
        before = {self.rules.values.get(("gradient", one), "mean") for one in self._passed if one < number}
        if number not in self._passed and any(one != rule for one in before):
            warn_once(_TAKEN_EARLY)

    def weight_of_loss(self) -> tf.Tensor:
        """Return the weight of the loss whose gradient is taken next; a step may have several losses."""
        number = self._asked["gradient"]
        self._passed.add(number)
        return self._weight_by(self.rules.values.get(("gradient", number), "mean"))

    def _weight_by(self, rule: Verdict) -> tf.Tensor:
        return tf.cast(self.present, self.share.dtype) if rule == "sum" else self.share

    def __enter__(self) -> "Step":
        _current.step = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.step = None


@functools.cache  # once for all replicas, traces and steps
def warn_once(sentence: str) -> None:
    step_clock().warn(sentence)


def current() -> Step | None:
    """Return the step that this thread's replica runs, or None."""
    return getattr(_current, "step", None)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Compute inside the block like one device with one example, independently of other replicas."""
    outer = current()
    if outer is None:
        yield
        return
    one = tf.constant(1)
    try:
        with Step(rows=one, global_rows=one, index=outer.index, all_reduce=list):
            yield
    finally:
        outer.__enter__()


@contextlib.contextmanager
def _among(known: set[int], optimizer: Any) -> Iterator[None]:
    """Keep the identity of an optimizer in a set inside the block."""
    known.add(id(optimizer))
    try:
        yield
    finally:
        known.discard(id(optimizer))


def cannot_add_up(what: str) -> UnsupportedError:
    """Return the error for a sum over replicas inside a program that XLA compiles."""
    return UnsupportedError(
        f"jit_compile is True, and {what} adds up over replicas in the middle of a step, which a program of XLA cannot "
        "do: it is made for one device. Pass jit_compile=False to model.compile(), or leave it out.",
        name="jit_compile",
        received=what,
    )


def not_logged_as_itself(name: str) -> UnsupportedError:
    """Return the error for a compiled step that logs more of a metric than its result under its name."""
    return cannot_add_up(f"the result of the metric {name!r}, logged under another name,")
