"""Features that go wrong on purpose, for the tests of the matrix."""

import os
import signal
import time

from tfdist.verify.feature import Context, Outcome, feature


@feature()
def same(ctx: Context) -> Outcome:
    """The same everywhere."""
    return {"number": 1.0}


@feature()
def other(ctx: Context) -> Outcome:
    """Other numbers under a strategy."""
    return {"number": 1.0 if ctx.strategy is None else 1.5}


@feature()
def raising(ctx: Context) -> Outcome:
    """An exception under a strategy."""
    if ctx.strategy is not None:
        raise LookupError("nothing here")
    return {"number": 1.0}


@feature()
def dying(ctx: Context) -> Outcome:
    """A process that is killed under a strategy."""
    if ctx.strategy is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return {"number": 1.0}


@feature(deadline_seconds=8)  # in which the process, which is new, has come to it on a busy machine too
def hanging(ctx: Context) -> Outcome:
    """No answer under a strategy."""
    while ctx.strategy is not None:
        time.sleep(1)
    return {"number": 1.0}


@feature()
def no_reference(ctx: Context) -> Outcome:
    """An exception on one device."""
    if ctx.strategy is None:
        raise LookupError("nothing here")
    return {"number": 1.0}


@feature(per_layout=True)
def layout(ctx: Context) -> Outcome:
    """The reference is told how many replicas it stands for."""
    return {"replicas": ctx.replicas, "workers": ctx.workers}


@feature(min_workers=2)
def several_workers(ctx: Context) -> Outcome:
    """Makes no sense in one process."""
    return {"number": 1.0}


@feature(deadline_seconds=1000)
def never_ending(ctx: Context) -> Outcome:
    """Says that it has begun, and waits until somebody ends the run."""
    if ctx.strategy is not None:
        with open(os.environ["MATRIX_BEGUN"], "w") as file:
            file.write(str(os.getpid()))
        while True:
            time.sleep(1)
    return {"number": 1.0}
