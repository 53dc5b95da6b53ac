"""The parts of every step on every worker, from rows made comparable. Loads no TensorFlow.

A step lasts from the end of the previous one to its own end, and its parts add up to it. A worker waits for others from
its own last gradient to that of the last worker. The rest until the last sum is communication that nothing hides; a sum
counts as ready when the first worker has it.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

from tfdist.monitor.recording.rows import BUCKETS, CHIEF_WORKERS, LEAST_NORM, WIDTH, Column

#: a processor is slow if both passes are longer by this share of themselves, and by shares of this ratio, at least
LEAST_LONGER, ALIKE = 0.05, 0.5


class Part(IntEnum):
    """A part of a step; the parts add up to the step."""

    INPUT = 0  # waits for the next batch
    FORWARD = 1  # from the begin of the step's function until the loss is known
    BACKWARD = 2  # until the last gradient of this worker is there
    COMPUTE = 3  # what computes where the graph has no stamps: forward, backward, reduction and update, not divided
    WAIT = 4  # for the gradients of others, and in agreements between workers, also between two steps
    COMMUNICATION = 5  # exposed: all gradients are there, and not all sums
    UPDATE = 6  # from the last sum to the end of the step's function
    CHECKPOINT = 7  # is written between two steps
    PYTHON = 8  # callbacks, whatever runs between steps, and the host's part of a step

    @property
    def label(self) -> str:
        return self.name.lower()


#: parts that a worker takes by itself, as long as others do or longer
OWN = (Part.INPUT, Part.FORWARD, Part.BACKWARD, Part.COMPUTE, Part.UPDATE, Part.CHECKPOINT, Part.PYTHON)
#: those of them that take longer where a processor is slower
COMPUTING = (Part.FORWARD, Part.BACKWARD, Part.COMPUTE, Part.UPDATE, Part.PYTHON)

# more than steps in one call have: a key is the number of a step, times this, and the number of its part
_PARTS = 1 << 24
# the last steps of a chief, which show its workers, and what it knows of each
_LAST = 100
_OF_CHIEF = (Column.COMPUTED, Column.FORWARDS, Column.BACKWARDS, Column.LOSSES)

#: attributes that have a row for each step
OF_STEPS = ("steps", "parts", "step", "hidden", "ends", "loss", "has_loss", "gradient_norm")


@dataclass(frozen=True)
class Timeline:
    """The steps of training that all workers have done, without traced ones."""

    ranks: tuple[int, ...]
    steps: np.ndarray  # numbers of the steps, shape (steps,)
    parts: np.ndarray  # seconds of each part, shape (steps, workers, parts)
    step: np.ndarray  # seconds of each step, shape (steps, workers), as all below
    hidden: np.ndarray  # seconds of communication during the backward pass, no part of the sum
    ends: np.ndarray  # of each step on the monotonic clock, seconds
    loss: np.ndarray  # of each worker's examples; NaN where it was not seen
    has_loss: np.ndarray  # it was seen
    gradient_norm: np.ndarray  # of each worker's reduced gradient; NaN where not measured, infinite where no number
    traced: int  # the last step that traced a function, or -1
    is_divided: bool  # stamps divide forward, backward and communication
    has_servers: bool  # workers exchange with servers, not with each other

    @property
    def own(self) -> tuple[Part, ...]:
        return (*OWN, Part.COMMUNICATION) if self.has_servers else OWN

    def of(self, part: Part) -> np.ndarray:
        return np.asarray(self.parts[:, :, part])

    def last(self, count: int) -> "Timeline":
        return self.only(slice(-count, None))

    def only(self, chosen: Any) -> "Timeline":
        cut = {name: getattr(self, name)[chosen] for name in OF_STEPS}
        return replace(self, **cut)


def timeline(rows: Mapping[int, np.ndarray]) -> Timeline:
    """Return the steps of training that are in the rows of all of these workers."""
    ranks = tuple(sorted(rows))
    trained = {rank: _trained(rows[rank]) for rank in ranks}
    every = [np.unique(keys) for keys, *_ in trained.values()]
    common = functools.reduce(np.intersect1d, every) if every else np.zeros(0, np.int64)
    table = np.zeros([len(common), len(ranks), WIDTH], np.int64)
    between = np.zeros([len(common), len(ranks)], np.int64)
    for place, rank in enumerate(ranks):
        keys, kept, before = trained[rank]
        last, back = np.unique(keys[::-1], return_index=True)  # of steps that are done again
        chosen = len(keys) - 1 - back[np.searchsorted(last, common)]
        table[:, place], between[:, place] = kept[chosen], before[chosen]
    is_traced = {rank: (one[:, Column.KIND] == 0) & (one[:, Column.TRACE] > 0) for rank, one in rows.items()}
    traced = max((int(one[is_traced[rank], Column.STEP].max(initial=-1)) for rank, one in rows.items()), default=-1)
    return _divided(ranks, common // _PARTS, table, between, traced=traced)


def of_workers(rows: Mapping[int, np.ndarray]) -> Mapping[int, np.ndarray]:
    """Return the rows of a chief's workers for steps in which it knows the time of each.

    A worker's step is the chief's: beyond its own time, the worker waits for others.
    """
    if len(rows) != 1:
        return rows
    (chief,) = rows.values()
    computed = chief[:, _of_chief(Column.COMPUTED)] > 0
    trained = computed[(chief[:, Column.KIND] == 0) & computed.any(axis=1)][-_LAST:]
    workers = np.flatnonzero(trained.sum(axis=0) * 2 > len(trained))  # the others are gone or unused
    complete = chief[computed[:, workers].all(axis=1)]
    found = {}
    for worker in workers if len(workers) > 1 else ():
        mine = complete.copy()
        own = np.minimum(mine[:, Column.COMPUTED + worker], mine[:, Column.WAIT])
        mine[:, Column.AGREE] += mine[:, Column.WAIT] - own
        mine[:, Column.WAIT] = own
        others = [other for other in range(CHIEF_WORKERS) if other != worker]
        for block in _OF_CHIEF:
            mine[:, _of_chief(block)][:, others] = 0
        found[int(worker)] = mine
    return found or rows


def _trained(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return keys of untraced steps of training, their rows, and the time since the step before each."""
    between = np.zeros(len(rows), np.int64)
    if len(rows) > 1:
        before, after = rows[:-1], rows[1:]
        follows = after[:, Column.SEQUENCE] == before[:, Column.SEQUENCE] + 1
        follows &= (before[:, Column.KIND] == 0) & (after[:, Column.IS_FIRST] == 0)
        gaps = np.maximum(after[:, Column.BEGIN] - before[:, Column.END], 0)
        between[1:] = np.where(follows, gaps, 0)
    kept = (rows[:, Column.KIND] == 0) & (rows[:, Column.TRACE] == 0) & (rows[:, Column.END] > 0)
    chosen = rows[kept]
    return chosen[:, Column.STEP] * _PARTS + chosen[:, Column.PART], chosen, between[kept]


def _divided(
    ranks: tuple[int, ...], steps: np.ndarray, table: np.ndarray, between: np.ndarray, *, traced: int
) -> Timeline:
    def of(column: Column) -> np.ndarray:
        return np.asarray(table[:, :, column])

    parts = np.zeros([*between.shape, len(Part)], np.float64)
    has_stamps = of(Column.GRAPH_BEGIN) > 0
    begin, end = of(Column.GRAPH_BEGIN), of(Column.GRAPH_END)
    # a part that was not seen has no length: there was no loss, or the reduction stood in a condition
    forward = np.maximum(of(Column.FORWARD), begin)
    gradients = np.maximum(of(Column.GRADIENTS), forward)
    reduced = np.clip(of(Column.REDUCED), gradients, np.maximum(end, gradients))
    known = ((of(Column.REDUCED) > 0) & has_stamps).all(axis=1, keepdims=True)
    if len(ranks):
        last = gradients.max(axis=1, keepdims=True)
        # All workers have the sums at about the same time. One that notices later was busy, such as with an update of
        # weights whose sum came first, by the thread that brings sums.
        there = np.maximum(reduced.min(axis=1, keepdims=True), last)
        reduced = np.where(known, np.minimum(reduced, np.maximum(there, gradients)), reduced)
        wait = np.where(known, np.clip(np.minimum(last, reduced) - gradients, 0, None), 0)
    else:
        wait = np.zeros_like(gradients)
    inside = np.where(has_stamps, np.maximum(end, reduced) - begin, 0)
    saving = np.minimum(of(Column.SAVING), between)
    agreed = np.minimum(of(Column.AGREED), between - saving)
    parts[:, :, Part.INPUT] = of(Column.INPUT)
    told = _told(table)
    computing = of(Column.WAIT) - told.forward - told.backward - told.exchange
    parts[:, :, Part.FORWARD] = np.where(has_stamps, forward - begin, 0) + told.forward
    parts[:, :, Part.BACKWARD] = np.where(has_stamps, gradients - forward, 0) + told.backward
    parts[:, :, Part.COMPUTE] = np.where(has_stamps, 0, of(Column.EXECUTE)) + computing + of(Column.UNDIVIDED)
    parts[:, :, Part.WAIT] = wait + of(Column.AGREE) + agreed
    parts[:, :, Part.COMMUNICATION] = np.where(has_stamps, reduced - gradients - wait, 0) + told.exchange
    parts[:, :, Part.UPDATE] = np.where(has_stamps, np.maximum(end, reduced) - reduced, 0) + of(Column.UPDATE)
    parts[:, :, Part.CHECKPOINT] = saving
    host = of(Column.CALLBACKS) + of(Column.DISPATCH) + of(Column.PYTHON)
    around = np.where(has_stamps, np.maximum(of(Column.EXECUTE) - inside, 0), 0)
    parts[:, :, Part.PYTHON] = between - saving - agreed + host + around
    return Timeline(
        ranks=ranks,
        steps=steps,
        parts=parts / 1e9,
        step=(of(Column.END) - of(Column.BEGIN) + between) / 1e9,
        hidden=_hidden(table, gradients) / 1e9,
        ends=of(Column.END) / 1e9,
        loss=np.where(of(Column.FORWARD) > 0, np.ascontiguousarray(of(Column.LOSS)).view(np.float64), told.loss),
        has_loss=(of(Column.FORWARD) > 0) | told.has_loss,
        gradient_norm=_norms(np.ascontiguousarray(of(Column.GRADIENT_NORM)).view(np.float64)),
        traced=traced,
        is_divided=bool(len(steps)) and bool((has_stamps | told.is_there).all()),
        has_servers=bool((table[:, :, _of_chief(Column.COMPUTED)] > 0).any()),
    )


def _of_chief(block: Column) -> slice:
    return slice(int(block), int(block) + CHIEF_WORKERS)


@dataclass(frozen=True)
class _Told:
    """The worker that a chief has waited for longest, and the losses of all: shape (steps, workers)."""

    forward: np.ndarray
    backward: np.ndarray
    exchange: np.ndarray  # weights, data and gradients under way
    loss: np.ndarray
    has_loss: np.ndarray
    is_there: np.ndarray


def _told(table: np.ndarray) -> _Told:
    computed, forwards, backwards, losses = (table[:, :, _of_chief(block)] for block in _OF_CHIEF)
    last = computed.argmax(axis=2)[:, :, None]
    own, forward, backward = (np.take_along_axis(one, last, 2)[:, :, 0] for one in (computed, forwards, backwards))
    own = np.minimum(own, table[:, :, Column.WAIT])
    is_there = np.asarray(backward > 0)
    forward = np.minimum(forward, own)
    backward = np.minimum(backward, own - forward)
    exchange = np.where(is_there, own - forward - backward, 0)
    seen = np.asarray(forwards > 0)
    has_loss = np.asarray(seen.any(axis=2))
    values = np.where(seen, np.ascontiguousarray(losses).view(np.float64), 0.0)
    with np.errstate(invalid="ignore"):  # parts are alike: none has more than one example more than another
        loss = np.where(has_loss, values.sum(axis=2) / np.maximum(seen.sum(axis=2), 1), np.nan)
    return _Told(forward, backward, exchange, loss, has_loss, is_there)


def _norms(words: np.ndarray) -> np.ndarray:
    found = np.where(np.isfinite(words), np.where(words <= LEAST_NORM, 0.0, words), np.inf)
    return np.asarray(np.where(words == 0, np.nan, found))


def _hidden(table: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    """Return the time of reductions before a worker's last gradient; overlapping ones count once.

    A reduction runs from the arrival of its last worker to its completion.
    """
    arrivals = table[:, :, Column.ARRIVALS : Column.ARRIVALS + BUCKETS]
    ends = table[:, :, Column.COMPLETIONS : Column.COMPLETIONS + BUCKETS]
    seen = (arrivals > 0).all(axis=1, keepdims=True) & (ends > 0)
    begins = np.broadcast_to(arrivals.max(axis=1, keepdims=True) if arrivals.shape[1] else arrivals, ends.shape)
    limit = gradients[:, :, None]
    begins = np.where(seen, np.minimum(begins, limit), limit)
    ends = np.where(seen, np.minimum(ends, limit), limit)
    order = np.argsort(begins, axis=2)
    begins, ends = np.take_along_axis(begins, order, 2), np.take_along_axis(ends, order, 2)
    reached = np.maximum.accumulate(ends, axis=2)
    covered = np.concatenate([np.zeros_like(reached[:, :, :1]), reached[:, :, :-1]], axis=2)
    return np.asarray(np.clip(ends - np.maximum(begins, covered), 0, None).sum(axis=2))


def what_is_longer(mine: np.ndarray, usual: np.ndarray, own: Sequence[Part] = OWN) -> tuple[Part, float]:
    """Return the part in which a worker takes longest compared with others, and the difference in seconds.

    A slower or shared processor makes both passes longer by the same factor: one cause, "compute", that no part
    explains.
    """
    longer = mine - usual
    longest = max(own, key=lambda part: float(longer[part]))
    passes = [Part.FORWARD, Part.BACKWARD]
    if longest in (*passes, Part.UPDATE) and (usual[passes] > 0).all():
        factors = longer[passes] / usual[passes]
        is_alike = factors.min() >= max(LEAST_LONGER, ALIKE * factors.max())
        if longest is Part.UPDATE:  # an update that is late by itself is longer by another factor
            is_alike &= bool(ALIKE * longer[longest] <= factors.max() * usual[longest])
        if is_alike:
            computing = float(np.clip(longer[list(COMPUTING)], 0, None).sum())
            return Part.COMPUTE, computing
    return longest, float(longer[longest])
