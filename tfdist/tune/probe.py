"""Runs a script up to its first `fit`, and measures the layers of the model there.

    python -m tfdist.tune.probe REQUEST SCRIPT [ARGUMENTS]

REQUEST is a `Request` as JSON. The process ends in the call of `fit`; nothing of it trains, and no callback is called.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.errors import TfdistError
from tfdist.launch.process.worker import end_with_parent

__all__ = ["Request", "main", "trainer"]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is to be measured.

    Attributes:
        path: where the profile goes; beside it, with ".error", a message if there is none.
        parent: the process without which this one ends.
        is_module: whether the script is the name of a module.
        divisors: the batch of `fit` is measured whole, and divided by each of these.
        counts_processor: whether seconds are those of the processor, which others cannot lengthen.
    """

    path: str
    parent: int
    is_module: bool
    divisors: tuple[int, ...]
    counts_processor: bool


def main(arguments: list[str]) -> None:
    """Run a script, and measure the model of its first `fit`.

    Args:
        arguments: the request, the script, and its own arguments.
    """
    request = Request(**json.loads(arguments[0]))
    end_with_parent(request.parent)
    from tfdist.compat.keras.first_batch import call_instead_of_fit

    call_instead_of_fit(lambda model, batch, fit: _measure(model, batch, fit, request))
    sys.argv = arguments[1:]
    sys.path[0] = os.getcwd() if request.is_module else os.path.dirname(os.path.realpath(sys.argv[0]))
    run: Callable[..., Any] = runpy.run_module if request.is_module else runpy.run_path
    run(sys.argv[0], run_name="__main__", **({"alter_sys": True} if request.is_module else {}))


def _measure(model: Any, batch: Any, fit: Callable[..., Any], request: Request) -> None:
    from tfdist.parallel.partition import measuring

    clock = time.process_time if request.counts_processor else time.perf_counter
    rows = int(next(iter(_flat(batch[0]))).shape[0])
    sizes = [max(rows // divisor, 1) for divisor in request.divisors]
    try:
        found = measuring.profile(model, batch, batch_sizes=sizes, in_fit=trainer(model, fit, clock), clock=clock)
    except TfdistError as error:
        Path(request.path + ".error").write_text(str(error), encoding="utf-8")
        raise SystemExit(1) from error
    Path(request.path).write_text(found.to_json(), encoding="utf-8")
    raise SystemExit(0)


def _flat(value: Any) -> list[Any]:
    import keras

    return list(keras.tree.flatten(value))


def trainer(model: Any, fit: Callable[..., Any], clock: Callable[[], float]) -> Callable[[Any, int], float] | None:
    """Return what trains some steps with one batch, and returns the seconds of one; None for what is not compiled."""
    import keras
    import tensorflow as tf

    class Clock(keras.callbacks.Callback):
        """The time at which each step has ended."""

        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(clock())

    def train(batch: Any, steps: int) -> float:
        times = Clock()
        data = tf.data.Dataset.from_tensors(tuple(one for one in batch if one is not None)).repeat()
        fit(model, data, steps_per_epoch=steps + 1, epochs=1, callbacks=[times], verbose=0)
        return (times.ends[-1] - times.ends[0]) / steps

    return train if model.compiled else None


if __name__ == "__main__":
    main(sys.argv[1:])
