"""A worker's computation for a part of a batch, under parameter servers.

A worker changes nothing. Its function reads weights from parameter servers and returns gradients, which it leaves on
the servers of their variables, and a few small numbers (the changes of metrics and layer states) for the chief. The
chief applies them in a second function (`update`) without the worker. So a worker may die at any moment: either all of
its step is applied, once, or nothing.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.keras import keras_trainer, keras_variables, stateless_scope
from tfdist.compat.tensorflow import new_variables
from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.compression import one_way
from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import compressed_reducer, reducer
from tfdist.monitor.phases import Passes
from tfdist.monitor.recording.stamp_rows import passes_of
from tfdist.training import step_timestamps
from tfdist.training.epoch import Layout
from tfdist.training.parameter_servers import gradient_push, part_function, transport
from tfdist.training.parameter_servers.batch_plan import Plan, UsesItsUpdatesError
from tfdist.training.parameter_servers.part_function import Part, PartFunction, held_by_chief, with_those_on_servers
from tfdist.training.replica import replica_optimizers, replica_step, xla_step
from tfdist.training.replica.judging import Rules


@dataclass(frozen=True)
class Result:
    """A worker's result for a part: small results as arrays, gradients as tensors on parameter servers.

    ``scales`` has the loss scale under which the gradients of each call were computed, 1 without one; ``passes`` the
    time that passes took, where it is recorded.
    """

    notes: list[np.ndarray]
    gradients: list[tf.Tensor]
    rows: int
    scales: list[float]
    passes: Passes | None = None


class Computation:
    """The function that workers run on a part of a batch."""

    def __init__(
        self,
        model: keras.Model,
        strategy: tf.distribute.Strategy,
        user_step: Callable[[Any], Any],
        layout: Layout,
        *,
        training: bool,
        plan: Plan,
        alone: bool,
        unseeded: Any,
        rules: Rules,
        is_stamped: bool = False,
    ) -> None:
        self._model = model
        self._step = replica_step.ReplicaStep(
            model, user_step, unseeded, training=training, is_compiled=model.jit_compile
        )
        self._is_stamped = is_stamped
        self._plan = plan
        self._alone = alone
        self._rules = rules
        self._held = held_by_chief(model, unseeded, rules)
        self._stand_ins: list[Any] = []  # the traced function knows them by weak references
        #: the values that the function hands over, see `gradient_push.ToChief`
        self.calls: list[gradient_push.Call] = []
        self.notes: list[gradient_push.Note] = []
        self.put_logs: Callable[[list[Any]], Any] | None = None
        self._function = PartFunction(model, strategy, layout, self._held, self._on_part, relaxed=layout.is_cut)

    @property
    def logs_are_metrics(self) -> bool:
        return self.put_logs is None

    @property
    def metrics_that_do_not_add(self) -> list[str]:
        """The names of metrics of which a part replaces a variable, where others add to theirs."""
        replaced = {id(note.target) for note in self.notes if note.mode == "set"}
        metrics = keras_trainer.metrics(self._model)
        return [one.name for one in metrics if not replaced.isdisjoint(map(id, one.variables))]

    def state(self) -> list[tf.Tensor]:
        """Return the present values of the variables on the chief, as the function's inputs."""
        values = [(keras_variables.value_of(one.variable), one.adds) for one in self._held]
        return [tf.zeros(value.shape, value.dtype) if adds else value.read_value() for value, adds in values]

    def __call__(
        self, device: str | None, counts: Sequence[Any], state: Sequence[Any], leaves: Sequence[Any]
    ) -> Result:
        """Compute a part on a device; return when gradients are on their servers."""
        with tf_servers.calls_on(device), xla_step.named_errors():
            packed, *gradients = self._function(counts, state, leaves)
            # Waits until the function has ended, and its gradients are where they belong.
            data = packed.numpy().tobytes()
        values = transport.unpacked(data, self.notes)
        told = [(note.mode, value) for note, value in zip(self.notes, values, strict=True)]
        scales = [float(value) for mode, value in told if mode == "scale"]
        passes = next((passes_of(value) for mode, value in told if mode == "passes"), None)
        return Result(values, list(gradients), int(counts[1]), scales, passes)

    def _on_part(self, part: Part, data: Any) -> list[Any]:
        part_function.adapt(self._model)
        trained = self._model.trainable_variables
        values, stand_in = part.values, list(self._plan.weights)
        if self._model.jit_compile:  # the program reads and changes variables of its own device
            values = with_those_on_servers(self._model, part.values)
            stand_in = [variable for variable, _ in values]
        scope = stateless_scope.CapturedUpdates(values, trained)
        scope.stand_in_for(stand_in, new_variables.for_step)
        shares = {"rows": part.rows, "global_rows": part.global_rows, "index": part.index, "rules": self._rules}
        try:
            stamped = step_timestamps.passes_told(data) if self._is_stamped else contextlib.nullcontext((data, None))
            with scope, stamped as (begun, passes):
                sink = gradient_push.ToChief(self._model, scope, self._plan, values, alone=self._alone, passes=passes)
                tensors = self._step(begun, sink, all_reduce=sink.all_reduce, **shares)
        except stateless_scope.AssignsWeights:
            raise UsesItsUpdatesError(trained) from None
        self.calls, self.notes, self.put_logs = sink.calls, sink.notes, sink.put_logs
        self._stand_ins = list(scope.stand_ins.values())
        for variable in self._stand_ins:
            new_variables.release(variable)
        return list(tensors)


def adapt_optimizer(optimizer: Any, strategy: tf.distribute.Strategy) -> None:
    """Let one optimizer object hand its gradients to the chief where a worker's function is traced."""
    choices = reducer.choices_of(optimizer)
    if choices.kind == "adasum":
        raise UnsupportedError(
            'reduction is "adasum" under ParameterServerStrategy, whose servers add up what comes from workers. Pass '
            'reduction="mean", or train under another strategy.'
        )
    codec = compressed_reducer.codec_of(optimizer)
    if codec is not None and one_way.goes_one_way(codec):
        pass  # workers encode and the chief decodes, without state
    elif remembered := reducer.OverReplicas(choices).sharded_state():
        names = " and ".join(state.name for state in remembered)
        raise UnsupportedError(
            f"the reduction of {optimizer.name!r} remembers {names} from one step to the next, for each replica by "
            "itself, under ParameterServerStrategy, whose workers come and go and remember nothing. Pass a "
            'codec without a memory, such as compression="qsgd-8", or train under another strategy.',
            name=optimizer.name,
            received=names,
        )
    replica_optimizers.adapt(optimizer, strategy)
