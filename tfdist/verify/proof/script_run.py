"""A process that runs a user's script, records its first training steps, and ends with the last of them.

    python -m tfdist.verify.proof.script_run REQUEST SCRIPT [ARGUMENTS]

REQUEST is a `Request` as JSON.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from tfdist.jobs.process import script_worker
from tfdist.variables import WORKER_INDEX
from tfdist.verify.proof.state_files import STRATEGY

#: has the explanation where a script cannot be compared
NOT_COMPARED = "not-compared"
SEED = 20


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request to record a run; ``replicas`` is the number a script sees where one device stands for its strategy."""

    folder: str
    kind: str
    steps: int
    is_module: bool = False
    replicas: int = 1

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def main(arguments: list[str]) -> None:
    request = Request(**json.loads(arguments[0]))
    import keras

    from tfdist.compat.keras import first_batch
    from tfdist.verify.proof import fit_steps, loop_steps, one_device

    keras.utils.set_random_seed(SEED)  # a script that sets its own has that
    number = WORKER_INDEX.read(os.environ)
    loop = loop_steps.LoopSteps(request.folder, request.kind, number, steps=request.steps)

    def record(model: Any, given: dict[str, Any], fit: Any) -> NoReturn:
        loop.stop()
        if request.kind == STRATEGY:
            fit_steps.under_strategy(model, given, fit, folder=request.folder, steps=request.steps, worker=number)
        else:
            fit_steps.on_one_device(model, given, fit, folder=request.folder, kind=request.kind)
        raise SystemExit(0)

    if request.kind != STRATEGY:
        one_device.use(request.replicas)
    first_batch.replace_fit(record)
    loop.install()
    try:
        script_worker.run_as_main(arguments[1], arguments[2:], is_module=request.is_module)
        loop.end()
    except fit_steps.NotComparedError as error:
        Path(request.folder, NOT_COMPARED).write_text(str(error), encoding="utf-8")
        raise SystemExit(1) from error


if __name__ == "__main__":
    main(sys.argv[1:])
