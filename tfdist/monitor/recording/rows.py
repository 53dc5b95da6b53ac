"""A row of the ring: one step of one worker, in words of eight bytes; times of the monotonic clock, 0 if not seen."""

from enum import IntEnum

from tfdist.monitor.phases import Kind, Phase

#: gradient reductions of a step whose own arrival and completion are kept
BUCKETS = 8
#: workers of a chief whose own time is kept
CHIEF_WORKERS = 8
#: kinds of steps by their number in a row
KINDS = (Kind.TRAIN, Kind.TEST, Kind.PREDICT)


class Column(IntEnum):
    """The meaning of each word of a row."""

    SEQUENCE = 0  # number of the row in this start, from 1; written last
    STEP = 1  # number of the step, equal on all workers
    PART = 2  # of a step that is several in one graph: which, from 0
    KIND = 3  # index in KINDS
    BEGIN = 4
    END = 5
    IS_FIRST = 6  # of an epoch, or after a step that is not in the ring: what lies before it is no time of a step
    SAVING = 7  # how long a checkpoint was written before it
    AGREED = 8  # how long workers agreed on something before it, as on what a callback has set: a wait for the last one
    # the time in each of the host's phases
    CALLBACKS = 9
    DISPATCH = 10
    INPUT = 11
    TRACE = 12
    PYTHON = 13
    EXECUTE = 14
    AGREE = 15
    WAIT = 16
    UPDATE = 17
    UNDIVIDED = 18
    # a chief's, of each of its first workers: when its result was there, since all had their parts, and
    # of that how long its forward and its backward pass took; the loss of its examples, the bits of a float64
    COMPUTED = 19
    FORWARDS = 19 + CHIEF_WORKERS
    BACKWARDS = 19 + 2 * CHIEF_WORKERS
    LOSSES = 19 + 3 * CHIEF_WORKERS
    # when, in the graph
    GRAPH_BEGIN = 19 + 4 * CHIEF_WORKERS
    FORWARD = 20 + 4 * CHIEF_WORKERS  # the loss was known
    GRADIENTS = 21 + 4 * CHIEF_WORKERS  # the last gradient was there
    REDUCED = 22 + 4 * CHIEF_WORKERS  # the last sum was
    GRAPH_END = 23 + 4 * CHIEF_WORKERS
    LOSS = 24 + 4 * CHIEF_WORKERS  # of this worker's examples, the bits of a float64
    REDUCTIONS = 25 + 4 * CHIEF_WORKERS  # how many of the pairs below are there
    ARRIVALS = 26 + 4 * CHIEF_WORKERS  # when this worker came to each, and
    COMPLETIONS = 26 + 4 * CHIEF_WORKERS + BUCKETS  # when its sum was there
    # the norm of this worker's part of the reduced gradient, as the bits of a float64
    GRADIENT_NORM = 26 + 4 * CHIEF_WORKERS + 2 * BUCKETS


WIDTH = 26 + 4 * CHIEF_WORKERS + 2 * BUCKETS + 1
#: stamps of a step in the graph, in this order; the loss, the number of reductions, arrivals, completions, the norm
STAMPS = tuple(range(Column.GRAPH_BEGIN, WIDTH))
#: steps whose stamps a process holds until they are read
ROWS_OF_STAMPS = 1024
#: steps of which the norm of the gradient is measured once; the norm that stands for 0, which is that of no measurement
NORM_EVERY, LEAST_NORM = 40, 1e-300

#: columns that are times on the machine's clock; all others are durations, numbers or values
TIMES = (
    int(Column.BEGIN),
    int(Column.END),
    *range(Column.GRAPH_BEGIN, Column.LOSS),
    *range(Column.ARRIVALS, Column.GRADIENT_NORM),
)

#: the column of each phase of the host
COLUMN_OF = {phase: int(Column[phase.name]) for phase in Phase}
HOST_PHASES = tuple(COLUMN_OF.values())
