"""Finding out, before a step runs on several replicas, what it reduces to: means over examples, sums, or neither.

The step is traced once more, for one device, and run on a few rows of the first batch: on all of them, on two parts of
them, and on them given twice. No variable changes: it runs in Keras' stateless scope. What it hands to its optimizers,
what its compiled losses make of a batch, and the lone numbers that it counts and logs are compared (`judging`).
Dropout is left out for that, and batch normalisation takes fixed statistics; they are not what is asked.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfdist.compat.keras import layers as keras_layers
from tfdist.compat.keras import metrics as keras_metrics
from tfdist.compat.keras import model as keras_model
from tfdist.compat.keras import stateless_scope
from tfdist.compat.tensorflow import data as tf_data
from tfdist.compat.tensorflow import trial as tf_trial
from tfdist.compat.tensorflow.meshes import sharded
from tfdist.compat.tensorflow.steps import replica_contexts
from tfdist.monitor.phases import Phase
from tfdist.monitor.process import step_clock
from tfdist.training.checks import judging
from tfdist.training.layout import flat
from tfdist.training.multi_worker.workers import Workers
from tfdist.training.replica import metrics, replica_step, step

_ROWS = 16
# of random numbers, over which a step's values are averaged
_DRAWS = 8
_UNTRIED = (
    "tfdist: whether the losses of %r are means over examples or sums could not be tried on parts of a batch (%s). "
    'They are taken for means. Say what they are: strategy.loss_reduction = "mean", or "sum".'
)
_NEITHER = (
    "tfdist: %s of %r is neither a mean over the examples of a batch nor their sum, as where a mask or a contrast "
    "between examples comes in. Each replica computes it of its own examples, and these are averaged by their number, "
    "which is not what one device computes. To be exact, return a value per example and let Keras reduce them (a mask "
    'as sample_weight; reduction="mean_with_sample_weight" divides by its sum), or gather what the loss needs of the '
    'whole batch (tf.distribute.get_replica_context().all_gather). strategy.loss_reduction = "mean" says that it is '
    "meant so."
)

#: why one worker computes every batch
WHY = "a loss is neither a mean over the examples of a batch nor their sum, and needs the whole batch"

Sums = set[tuple[str, int]]


class Probe:
    """What the steps of a model reduce to, found out before the first of them.

    Args:
        model: the model.
        strategy: in whose scope it was made.
        workers: who must come to the same verdict.
        user_step: its `train_step` or `test_step`.
        unseeded: Keras' generator for random numbers without a seed.
        replicas: how many compute parts of a batch; there is nothing to find out with one.
    """

    def __init__(
        self,
        model: keras.Model,
        strategy: Any,
        workers: Workers,
        user_step: Callable[[Any], Any],
        unseeded: Any,
        *,
        replicas: int,
    ) -> None:
        self._model = model
        self._strategy = strategy
        self._workers = workers
        self._user_step = user_step
        self._step = replica_step.ReplicaStep(model, user_step, unseeded, training=False)
        self._replicas = replicas
        self._done = False
        self._is_cut = False
        #: what is a sum over examples; see `Step.is_sum`
        self.sums: Sums = set()
        #: what of the step's gradients and losses is neither a mean nor a sum, for messages
        self.neither: list[str] = []

    @property
    def is_due(self) -> bool:
        """Whether `look` has something to find out."""
        if self._done:
            return False
        self._done = self._replicas == 1 or self._is_settled()
        return not self._done

    def _is_settled(self) -> bool:
        given = self._strategy.loss_reduction
        if not keras_model.reduces_by_itself(self._model, self._user_step):
            return True
        if given == "sum":
            kind = "gradient" if keras_model.has_own_train_step(self._model) else "loss"
            self.sums.update((kind, number) for number in range(_MANY))
        return bool(given != "detect")

    def look(self, slices: Sequence[tuple[Any, Any]]) -> bool:
        """Try the step on rows of this worker's data, and agree with the others; return whether there are sums.

        Args:
            slices: the number of examples and the data of each replica of this worker.
        """
        self._done = True
        step_clock().enter(Phase.TRACE)
        found: dict[tuple[str, int], judging.Verdict] = {}
        names: dict[tuple[str, int], str] = {}
        why = None
        self._is_cut = any(sharded.sharding_of(weight) is not None for weight in self._model.weights)
        wanted = _ROWS if not self._is_cut else self._shared_rows(slices)
        if (data := some_of(slices, wanted)) is not None:
            try:
                try:
                    found, names = self._try(data)
                except tf.errors.ResourceExhaustedError:
                    found, names = self._try(some_of(slices, 2))
            except Exception as error:  # noqa: BLE001 - the user's code, on fewer rows than it is written for
                self._made_variables()
                why = f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"
        verdicts = self._agree(found)
        self.sums.update(key for key, verdict in verdicts.items() if verdict == "sum")
        judged = {key: verdict for key, verdict in verdicts.items() if key[0] in ("gradient", "loss")}
        self.neither = [names.get(key, "a loss") for key, verdict in judged.items() if verdict == "neither"]
        if why is not None and self._workers.is_chief:
            logging.getLogger("tfdist").warning(_UNTRIED, self._model.name, why)
        return bool(self.sums)

    def _shared_rows(self, slices: Sequence[tuple[Any, Any]]) -> int:
        """Return how many rows all workers can try: where weights lie in parts, every run needs all workers."""
        return min(_ROWS, int(self._workers.gather([sum(int(rows) for rows, _ in slices)]).min()))

    def warn(self) -> None:
        """Say once what is neither a mean nor a sum."""
        said: set[str] = vars(self._model).setdefault("_tfdist_said", set())
        for name in dict.fromkeys(self.neither):
            if name not in said and self._workers.is_chief:
                logging.getLogger("tfdist").warning(_NEITHER, name, self._model.name)
            said.add(name)

    def _agree(self, found: dict[tuple[str, int], judging.Verdict]) -> dict[tuple[str, int], judging.Verdict]:
        """Return the verdicts of all workers; some may have had no examples, or could not try them."""
        mine = [
            number
            for (kind, place), verdict in found.items()
            for number in (step.KINDS.index(kind), place, judging.VERDICTS.index(verdict))
        ]
        longest = int(self._workers.gather([len(mine)]).max())
        table = self._workers.gather(mine + [-1] * (longest - len(mine))) if longest else np.zeros((1, 0), int)
        said: dict[tuple[str, int], list[judging.Verdict]] = {}
        for kind, place, verdict in table.reshape(-1, 3).tolist():
            if kind >= 0:
                said.setdefault((step.KINDS[kind], place), []).append(judging.VERDICTS[verdict])
        return {key: judging.agreed(verdicts) for key, verdicts in said.items()}

    def _try(self, data: Any) -> tuple[dict[tuple[str, int], judging.Verdict], dict[tuple[str, int], str]]:
        count = int(step.rows_of(data))
        function, names, is_random = self._traced(data)
        draws = range(_DRAWS if is_random else 1)

        def of(rows: Any) -> list[np.ndarray]:
            found = [[value.numpy() for value in function(draw, rows)] for draw in draws]
            return [np.mean(same, axis=0) for same in zip(*found, strict=True)]

        def between(begin: int, end: int) -> tuple[float, list[np.ndarray]]:
            return (end - begin) / count, of(step.slice_rows(data, tf.constant(begin), tf.constant(end)))

        whole, twice = of(data), of(_joined(data, data))
        first = count // 3 or 1
        parts = [between(0, first), between(first, count)] if count > 1 else []
        tolerance = 5e-2 if keras_model.computes_in_16_bits(self._model) else 1e-3
        verdicts = {
            key: judging.judge(
                whole[place],
                [(share, values[place]) for share, values in parts],
                twice[place],
                tolerance=tolerance,
                is_random=is_random,
            )
            for place, key in enumerate(names)
        }
        return verdicts, names

    def _traced(self, data: Any) -> tuple[Callable[[int, Any], list[tf.Tensor]], dict[tuple[str, int], str], bool]:
        names: dict[tuple[str, int], str] = {}

        def compute(draw: tf.Tensor, *given: Any) -> list[tf.Tensor]:
            names.clear()
            tensors = iter(given)
            packed = [None if leaf is None else next(tensors) for leaf in _leaves(data)]
            return self._compute(draw, tf.nest.pack_sequence_as(data, packed), names)

        specs = [tf.TensorSpec([], tf.int32), *(tf_trial.relaxed(leaf) for leaf in flat((data,)))]
        for _ in range(2):
            traced = tf.function(compute, autograph=False).get_concrete_function(*specs)
            if not self._made_variables():
                break
        types = tf_trial.operations(traced)
        if (change := tf_trial.changes(types, meets_others=self._is_cut)) is not None:
            raise RuntimeError(f"it has the operation {change}, which changes something else than Keras variables")
        return (lambda draw, rows: traced(tf.constant(draw), *flat((rows,)))), names, tf_trial.draws(types)

    def _made_variables(self) -> bool:
        """Return whether a trace has made Keras variables, which get their first values now."""
        if not stateless_scope.made_variables():
            return False
        with self._strategy.scope():
            stateless_scope.initialise_made()
        return True

    def _compute(self, draw: tf.Tensor, data: Any, names: dict[tuple[str, int], str]) -> list[tf.Tensor]:
        model, noted = self._model, []
        rows = step.rows_of(data)

        def note(kind: str, number: int, name: str, value: Any) -> None:
            names[kind, number] = f"the loss {name!r}" if kind == "loss" else f"the gradient for {name!r}"
            noted.append(_sketch(value))

        # Metrics count from zero: what each replica has counted need not be added up for this.
        counted = [variable for metric in model.metrics for variable in metric.variables]
        fixed = keras_layers.without_chance(keras_model.layers(model))
        scope = stateless_scope.CapturedUpdates([(v, tf.zeros(v.shape, v.dtype)) for v in counted])
        with fixed, replica_contexts.of_no_strategy(), scope:
            self._step(data, _Noted(note), rows=rows, global_rows=rows, index=draw, all_reduce=list)
        return noted


class _Noted:
    """The sink of a step that is only tried: what it makes is looked at.

    Args:
        note: see `Step.noted`.
    """

    def __init__(self, note: Callable[[str, int, str, Any], None]) -> None:
        self._note = note

    def begin(self, current: step.Step, *, asks: bool) -> None:
        """Let the step tell what it asks; what is made of results of metrics is over all replicas already."""
        self._current = current
        current.noted, current.result_of = self._note, _ones

    def apply(self, optimizer: Any, gradients: list[Any], variables: Any) -> None:
        """Note the gradients."""
        self._current.is_sum("gradient", gradients, name=optimizer.name)

    def end(self, logs: Any) -> None:
        """Note what is logged."""
        for value in metrics.scalars(logs)[0]:
            self._current.is_sum("log", value)


# more than a step has gradients or losses
_MANY = 1000


def _leaves(data: Any) -> list[Any]:
    return list(tf.nest.flatten(data, expand_composites=False))


def some_of(slices: Sequence[tuple[Any, Any]], wanted: int) -> Any:
    """Return a few rows of what the replicas of this worker have, some of each; None if there are no examples.

    Args:
        slices: the number of examples and the nest of each replica.
        wanted: how many rows, if there are so many.
    """
    present = [(int(rows), data) for rows, data in slices if int(rows)]
    if not present or not wanted:
        return None
    each = -(-wanted // len(present))
    some = [step.slice_rows(data, tf.constant(0), tf.constant(min(rows, each))) for rows, data in present]
    return step.slice_rows(_joined(*some), tf.constant(0), tf.constant(wanted))


def _joined(*nests: Any) -> Any:
    """Return the rows of several nests; of what has no rows, the first."""

    def joined(*leaves: Any) -> Any:
        return leaves[0] if leaves[0] is None or leaves[0].shape.rank == 0 else tf_data.joined(*leaves)

    return tf.nest.map_structure(joined, *nests, expand_composites=False)


def _ones(metric: keras.Metric) -> Any:
    """Return ones in the shape of a metric's result."""
    found = keras_metrics.own_result(metric)
    return tf.nest.map_structure(lambda value: tf.ones_like(tf.convert_to_tensor(value)), found)


def _sketch(value: Any) -> tf.Tensor:
    """Return a few numbers that are linear in a value, or in each of several gradients; float64 vector."""
    values = [one for one in (value if isinstance(value, list) else [value]) if one is not None]
    return tf.reshape(tf.stack([_projections(one) for one in values]), [-1]) if values else tf.zeros([1], tf.float64)


def _projections(value: Any) -> tf.Tensor:
    rows = value.indices if isinstance(value, tf.IndexedSlices) else None
    dense = tf.cast(tf.convert_to_tensor(value) if rows is None else value.values, tf.float64)
    if rows is None:
        dense = tf.reshape(dense, [1, -1])
        rows = tf.zeros([1], tf.int64)
    dense = tf.reshape(dense, [tf.shape(dense)[0], -1])
    width = tf.shape(dense, out_type=tf.int64)[1]
    places = tf.cast(tf.cast(rows, tf.int64)[:, None] * width + tf.range(width)[None], tf.float64)
    return tf.stack([tf.reduce_sum(dense * tf.cos(places * rate + rate)) for rate in (0.7548776662, 0.5698402910)])
