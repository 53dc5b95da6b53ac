"""A replica's forward and backward pass as one XLA program, for `jit_compile=True`.

XLA compiles for one device and knows no collective. So gradients leave the program, and are reduced and applied behind
it; the metrics' counts are added up there as well. A step that needs other replicas in its middle is refused by name.
"""

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfdist.compat.keras.metrics import metric_weights
from tfdist.compat.tensorflow import sparse_rows, traced_uses
from tfdist.errors import UnsupportedError
from tfdist.training.replica import current_step

_untraced = tf.autograph.experimental.do_not_convert
_CANNOT = re.compile(r"Detected unsupported operations when trying to compile graph [^:]*: (.*)")


def program(function: Callable[[], Any]) -> Any:
    """Return the result of a function, which reads its inputs from the enclosing functions."""
    # Each replica has a function of its own: another's would be found in its place, with the other's variables.
    return tf.function(_untraced(function), jit_compile=True).get_concrete_function()()


def run(user_step: Callable[[Any], Any], data: Any, current: current_step.Step) -> Any:
    """Run a step, with everything up to its gradients in one program."""
    sink, result_of, kept = current.sink, current.result_of, _Kept(current)

    def forward_and_backward() -> Any:
        logs = user_step(data)
        kept.require_unused()
        return logs, kept.gradients

    current.sink, current.is_one_program = kept, True
    current.result_of = None if result_of is None else kept.result
    try:
        logs, gradients = program(forward_and_backward)
    finally:
        current.sink, current.is_one_program, current.result_of = sink, False, result_of
    for call, own in zip(kept.calls, gradients, strict=True):
        assert sink is not None
        with current.pairing(call.optimizer) if call.in_pairs else contextlib.nullcontext():
            sink.apply(call.optimizer, [_joined(*pair) for pair in zip(own, call.kinds, strict=True)], call.variables)
    return logs


class _Call(NamedTuple):
    """A call of an optimizer's `apply`; ``in_pairs`` if it came by an `apply_gradients` of the user's."""

    optimizer: Any
    variables: Any
    kinds: list[list[sparse_rows.RowKind] | None]
    uses: int
    in_pairs: bool


class _Kept:
    """The sink inside a program, which keeps the gradients given to optimizers."""

    def __init__(self, current: current_step.Step) -> None:
        self._current = current
        self._results: dict[str, list[Any]] = {}
        self.calls: list[_Call] = []
        self.gradients: list[list[Any]] = []

    def begin(self, current: current_step.Step, *, asks: bool) -> None:
        """Do nothing: the step has begun outside."""

    def apply(self, optimizer: Any, gradients: list[Any], variables: Any) -> None:
        """Keep the gradients; of sparse ones the indices in parts, which only this graph can tell apart."""
        parts = [sparse_rows.parts(g.indices) if isinstance(g, tf.IndexedSlices) else None for g in gradients]
        self.gradients.append(
            [g if found is None else _apart(g, found) for g, found in zip(gradients, parts, strict=True)]
        )
        known = None if variables is None else list(variables)
        kinds = [None if found is None else [kind for _, kind in found] for found in parts]
        in_pairs = id(optimizer) in self._current.in_pairs
        self.calls.append(_Call(optimizer, known, kinds, traced_uses.uses(known or []), in_pairs))

    def end(self, logs: Any) -> Any:
        return logs

    def result(self, metric: keras.Metric) -> Any:
        """Return a metric's result over this replica alone; in logs, the result over all replicas replaces it later."""
        with self._current.own_results():
            found = metric_weights.own_result(metric)
        self._current.replaced_results.append(metric.name)
        self._results.setdefault(metric.name, []).extend(tf.nest.flatten(found))
        return found

    def require_unused(self) -> None:
        """Raise if the step has used updates or results of metrics, which are known when the program has ended."""
        for name, results in self._results.items():
            if any(tf.is_tensor(result) and result.consumers() for result in results):
                raise current_step.cannot_add_up(f"the result of the metric {name!r}, which train_step uses,")
        for call in self.calls:
            if traced_uses.uses(call.variables or []) != call.uses:
                raise UnsupportedError(
                    f"jit_compile is True, and train_step uses variables after it has given their gradients to the "
                    f"optimizer {call.optimizer.name!r}: they are updated when the program of XLA has ended, and would "
                    "still have their old values. Apply gradients last, or pass jit_compile=False to model.compile().",
                    name="jit_compile",
                    received=call.optimizer.name,
                )


def _apart(gradient: tf.IndexedSlices, parts: list[tuple[tf.Tensor, sparse_rows.RowKind]]) -> tuple[Any, ...]:
    return gradient.values, [tf.reshape(part, [-1]) for part, _ in parts], gradient.dense_shape


def _joined(gradient: Any, kinds: list[sparse_rows.RowKind] | None) -> Any:
    if kinds is None:
        return gradient
    values, parts, shape = gradient
    known = [sparse_rows.marked(part, kind) for part, kind in zip(parts, kinds, strict=True)]
    return tf.IndexedSlices(values, known[0] if len(known) == 1 else tf.concat(known, axis=0), shape)


@contextlib.contextmanager
def named_errors() -> Iterator[None]:
    """Name the operations that XLA cannot compile, if TensorFlow's error does."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _CANNOT.search(str(error))
        if found is None:
            raise
        names = sorted(set(re.findall(r"(\w+) \(No registered", found.group(1)))) or [found.group(1)[:200]]
        raise UnsupportedError(
            f"jit_compile is True, and XLA cannot compile {', '.join(names)}, which the model's step contains. Pass "
            "jit_compile=False to model.compile(), or leave such operations to the input pipeline.",
            name="jit_compile",
            received=", ".join(names),
        ) from error
