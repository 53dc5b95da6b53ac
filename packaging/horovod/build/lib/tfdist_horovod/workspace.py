"""A place to run programs in: a temporary folder, a log, and an error that names the cause when one of them fails."""

import contextlib
import secrets
from collections.abc import Iterator
from pathlib import Path

from tfdist.errors import ConfigError, DeadlineError, TfdistError
from tfdist.processes.job_resources import guarded
from tfdist_horovod.diagnose import Cause, find_cause
from tfdist_horovod.program import ProgramError, Runner


@contextlib.contextmanager
def workshop(parent: Path, log: Path, *, keep_log: bool, verb: str) -> Iterator[Runner]:
    """Yield a runner of programs; afterwards they and the temporary folder are gone."""
    try:
        file = log.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the log {log} cannot be written ({error.strerror}). Name another: --log FILE", name="--log", path=log
        ) from error
    try:
        with file, guarded(secrets.token_hex(8), parent=parent) as guard:
            yield Runner(guard=guard, log=file)
    except (TfdistError, OSError) as error:
        keep_log = True
        kind = DeadlineError if isinstance(error, DeadlineError) else TfdistError
        raise kind(_explained(error, log, verb=verb), path=log) from error
    finally:
        if not keep_log:
            log.unlink(missing_ok=True)


def _explained(error: TfdistError | OSError, log: Path, *, verb: str) -> str:
    why = Cause(str(error))
    if isinstance(error, ProgramError):
        why = find_cause(log.read_text(encoding="utf-8", errors="replace") + f"\n{error}")
    elif isinstance(error, OSError):
        why = find_cause(str(error))
    cure = [f"What to do: {why.cure}"] if why.cure else []
    return "\n".join([f"Horovod was not {verb}: {why.line}", *cure, f"The full log: {log}"])
