"""The vocabulary of a worker's time: phases, which are measured, and activities, which the agent judges.

A step is always in exactly one phase, so the times of its phases add up to the time of the step. Times are the host's:
on a GPU the call of `EXECUTE` may return before its kernels end. The phases by strategy:

    a model in a tfdist scope     DISPATCH, INPUT, TRACE or PYTHON, EXECUTE; AGREE with several workers
    a chief of parameter servers  the same, with WAIT and UPDATE in place of EXECUTE
    a model without a scope       UNDIVIDED, PYTHON; only with `tfdist.callbacks.BackupAndRestore` under an agent

Computation and communication are one TensorFlow function, so both are in EXECUTE; stamps in the graph divide it
(`recording`), and a chief's workers report `Passes`. A new phase is a member here, with its activity; observers count
unknown phases as time of the step.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Kind(StrEnum):
    TRAIN = "train"
    TEST = "test"
    PREDICT = "predict"


class Phase(StrEnum):
    CALLBACKS = "callbacks"  # the step is announced, and the user's callbacks run before it: no time of the step's work
    DISPATCH = "dispatch"  # Python of tfdist: the step begins, work is handed out and results are taken in
    INPUT = "input"  # waits for the next batch
    TRACE = "trace"  # a function is traced, and runs for the first time
    PYTHON = "python"  # the user's step runs as Python: an eager model, or the trace of a model without a scope
    EXECUTE = "execute"  # the step's function: computation, communication and update, not told apart; with several
    # steps per execution the input as well, which their graph takes by itself
    AGREE = "agree"  # workers compare a few integers, and wait for the last of them
    WAIT = "wait"  # a chief waits for its workers, whose time it measures itself
    UPDATE = "update"  # a chief has its servers apply gradients
    UNDIVIDED = "undivided"  # a whole step, without the time that it waits for data


class Activity(IntEnum):
    """The activity of a worker, which decides its time limit. The status table has the values, events the names."""

    STARTING = 0  # before fit, or restoring
    TRACING = 1  # the first time of a function, which is compiled; or a step of an eager model, the user's Python
    STEPPING = 2  # inside a step; or in an agreement between workers, when none is under way
    INPUT = 3  # it waits for data
    BETWEEN = 4  # no step is under way: callbacks, and whatever else the user does between steps, which has no bound
    SAVING = 5
    HELD = 7  # it was asked to stop, and waits for the number of the step
    ENDED = 8  # fit has returned, and no step is under way; or stops as it was asked to
    RESERVE = 9  # it is ready to step, and waits until it is needed
    WAITING = 10  # a chief waits for its workers, whose time it measures itself


ACTIVITY_OF: Mapping[Phase, Activity] = {
    Phase.CALLBACKS: Activity.BETWEEN,
    Phase.DISPATCH: Activity.STEPPING,
    Phase.INPUT: Activity.INPUT,
    Phase.TRACE: Activity.TRACING,
    Phase.PYTHON: Activity.TRACING,  # it may be looked at in a debugger
    Phase.EXECUTE: Activity.STEPPING,
    Phase.AGREE: Activity.STEPPING,
    Phase.WAIT: Activity.WAITING,
    Phase.UPDATE: Activity.STEPPING,
    Phase.UNDIVIDED: Activity.INPUT,  # as patient as the wait for data that may be in it
}


@dataclass(frozen=True)
class Passes:
    """The report of a worker without a script about its part of a step."""

    forward: float  # seconds from weights and data to the loss; 0 where it was not seen
    backward: float  # seconds from the loss to the last gradient
    loss: float  # of its examples; NaN where it was not seen
