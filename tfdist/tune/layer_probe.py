"""A process that runs a script up to its first `fit`, and measures the layers of the model there.

    python -m tfdist.tune.layer_probe REQUEST SCRIPT [ARGUMENTS]

REQUEST is a `Request` as JSON. The process ends in the call of `fit`, without training and without a callback.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.errors import TfdistError
from tfdist.jobs.process.script_worker import end_with_parent, run_as_main
from tfdist.storage.files import write_whole
from tfdist.validation import counted

_POLL_SECONDS = 0.02


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to measure the layers of a model."""

    # the path of the profile; a message goes to the same path with ".error", and the name of the phase with ".phase"
    path: str
    parent: int  # the pid of the process whose end ends this one
    is_module: bool
    divisors: tuple[int, ...]  # the numbers by which the batch of `fit` is divided for further measurements
    counts_processor: bool  # whether to measure CPU seconds, which other programs cannot lengthen
    # the paths of all requests measured at once; their processes wait for each other in `fit`
    together: tuple[str, ...] = ()


def main(arguments: list[str]) -> None:
    """Run a script, and measure the model of its first `fit`."""
    request = Request(**json.loads(arguments[0]))
    end_with_parent(request.parent)
    from tfdist.compat.keras.first_batch import call_instead_of_fit

    call_instead_of_fit(lambda model, batch, fit: _measure(model, batch, fit, request))
    run_as_main(arguments[1], arguments[2:], is_module=request.is_module)


def _measure(model: Any, batch: Any, fit: Callable[..., Any], request: Request) -> None:
    import keras

    from tfdist.parallel.partition import profile_model

    clock = time.process_time if request.counts_processor else time.perf_counter

    rows = int(keras.tree.flatten(batch[0])[0].shape[0])
    sizes = [max(rows // divisor, 1) for divisor in request.divisors]

    def tell(text: str) -> None:
        write_whole(Path(f"{request.path}.phase"), text)

    def in_fit(batch: Any, steps: int) -> float:
        tell(f"measuring whole steps of {model.name}")
        return profile_model.step_seconds(model, batch, steps, fit=fit, clock=clock)

    try:
        profile_model.require_graph(model)  # before others are waited for
        Path(f"{request.path}.here").touch()
        while not all(Path(f"{path}.here").exists() for path in request.together):
            time.sleep(_POLL_SECONDS)  # the process that started all of them has a deadline
        tell(f"measuring the layers of {model.name} with {counted(len({rows, *sizes}), 'batch size')}")
        found = profile_model.profile(
            model, batch, batch_sizes=sizes, in_fit=in_fit if model.compiled else None, clock=clock
        )
    except TfdistError as error:
        write_whole(Path(f"{request.path}.error"), str(error))
        raise SystemExit(1) from error
    write_whole(Path(request.path), found.to_json())  # what exists is read, even if this process is killed
    raise SystemExit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
