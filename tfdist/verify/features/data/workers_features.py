"""Differences between workers: seeds, data, decisions."""

import itertools
from typing import Any

import numpy as np

from tfdist.errors import TfdistError
from tfdist.verify.feature import Context, Outcome, feature, keras, tf
from tfdist.verify.feature_tasks import BATCH, PARTIAL, WIDTH, compiled, in_batches, regression, trained


def _model(ctx: Context) -> Any:
    return compiled(ctx, metrics=["mae"])


@feature(min_workers=2)
def seeds_differ(ctx: Context) -> Outcome:
    """Another seed on every worker: all start from the chief's weights."""
    keras.utils.set_random_seed(50 + ctx.worker)
    return trained(ctx, _model(ctx), *regression(PARTIAL))


def _refusal(ctx: Context, x: Any, y: Any) -> Outcome:
    try:
        _model(ctx).fit(x, y, batch_size=None if y is None else BATCH, shuffle=False, verbose=0)
    except TfdistError as error:
        return {"error": type(error).__name__, "names the worker": "worker 1" in str(error)}
    return {"error": "none", "names the worker": False}


def _disagreement(ctx: Context) -> Outcome:
    """Return the outcome that is expected of every worker; it is the reference of one device."""
    return {"error": "DisagreementError", "names the worker": True}


@feature(min_workers=2, reference=_disagreement)
def data_differs(ctx: Context) -> Outcome:
    """Arrays that differ between workers: an error on all of them that names the worker."""
    return _refusal(ctx, *regression(PARTIAL, seed=1 + ctx.worker))


@feature(min_workers=2, reference=_disagreement)
def one_target_differs(ctx: Context) -> Outcome:
    """Arrays that differ in one number of the first batch."""
    x, y = regression(PARTIAL)
    y[3] += 0.001 * ctx.worker
    return _refusal(ctx, x, y)


@feature(min_workers=2, reference=_disagreement)
def sizes_differ(ctx: Context) -> Outcome:
    """Arrays of different length: an error, not a worker that waits for ever."""
    return _refusal(ctx, *regression(PARTIAL - 16 * min(ctx.worker, 1)))


@feature(min_workers=2, reference=_disagreement)
def generators_differ(ctx: Context) -> Outcome:
    """Generators of which one ends earlier: an error, not a worker that waits for ever."""
    rows = 48 - 2 * BATCH * min(ctx.worker, 1)
    return _refusal(ctx, in_batches(*(array[:rows] for array in regression(48))), None)


def _own(worker: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a worker's own examples: 40 of the first, 24 of the second, and so on in turn."""
    return regression((40, 24)[worker % 2], seed=30 + worker)


def _parts(array: np.ndarray, parts: int) -> list[np.ndarray]:
    """Return the parts into which batches of eight rows are cut for that many steps each."""
    batches = [b for (b,) in in_batches(array, size=8)]
    return [b[len(b) * part // parts : len(b) * (part + 1) // parts] for b in batches for part in range(parts)]


def _unions(ctx: Context) -> Outcome:
    """Train one device on what the workers read together: 1/W of each one's batch of eight, while its data lasts."""
    model = _model(ctx)
    sources = [_own(worker) for worker in range(ctx.workers)]
    x, y = (
        [np.concatenate(step) for step in itertools.zip_longest(*parts, fillvalue=parts[0][0][:0])]
        for parts in ([_parts(array, ctx.workers) for array in arrays] for arrays in zip(*sources, strict=True))
    )
    batches = list(zip(x, y, strict=True))
    steps = len(batches)
    spec = tuple(tf.TensorSpec([None, *array.shape[1:]], tf.float32) for array in batches[0])
    data = tf.data.Dataset.from_generator(lambda: batches, output_signature=spec)
    return trained(ctx, model, data.apply(tf.data.experimental.assert_cardinality(steps)), batch_size=None)


@feature(min_workers=2, reference=_unions, per_layout=True)
def own_data_uneven(ctx: Context) -> Outcome:
    """AutoShardPolicy.OFF, 40 examples on one worker and 24 on the other: the epoch ends together."""
    data = tf.data.Dataset.from_tensor_slices(_own(ctx.worker)).batch(8)
    return trained(ctx, _model(ctx), _sharded(data, "OFF"), batch_size=None)


@feature(min_workers=2, reference=_unions, per_layout=True)
def auto_shard_file(ctx: Context) -> Outcome:
    """AutoShardPolicy.FILE: every worker reads files of its own, with 40 and 24 lines."""
    pattern = f"{ctx.directory}/{{}}.csv"
    if ctx.is_chief:
        for worker in range(ctx.workers):
            np.savetxt(pattern.format(worker), np.hstack(_own(worker)), delimiter=",", fmt="%.9e")
    ctx.barrier("written")
    files = tf.data.Dataset.from_tensor_slices([pattern.format(worker) for worker in range(ctx.workers)])
    lines = files.flat_map(tf.data.TextLineDataset).map(_parsed).batch(8)
    return trained(ctx, _model(ctx), _sharded(lines, "FILE"), batch_size=None)


def _parsed(line: Any) -> tuple[Any, Any]:
    row = tf.stack(tf.io.decode_csv(line, [0.0] * (WIDTH + 1)))
    return row[:WIDTH], row[WIDTH:]


def _sharded(data: Any, policy: str) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy[policy]
    return data.with_options(options)


@feature(min_workers=2)
def auto_shard_data(ctx: Context) -> Outcome:
    """AutoShardPolicy.DATA: the workers share one dataset."""
    data = tf.data.Dataset.from_tensor_slices(regression(PARTIAL)).batch(BATCH)
    return trained(ctx, _model(ctx), _sharded(data, "DATA"), batch_size=None)


@feature(min_workers=2)
def one_worker_stops(ctx: Context) -> Outcome:
    """A callback that wants to stop on one worker alone: all stop after the same epoch."""

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1 and ctx.worker == ctx.workers - 1:
                self.model.stop_training = True

    return trained(ctx, _model(ctx), *regression(PARTIAL), epochs=4, callbacks=[Stop()])


@feature(min_workers=2)
def rate_of_the_chief(ctx: Context) -> Outcome:
    """A schedule that gives another learning rate on every worker: the chief's holds."""
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.2 / (1 + epoch + 5 * ctx.worker))
    outcome = trained(ctx, _model(ctx), *regression(PARTIAL), callbacks=[schedule])
    return {name: value for name, value in outcome.items() if name != "history/learning_rate"}
