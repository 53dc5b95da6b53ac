"""Work in other processes, which do not run the script that asks for it once more: loky starts them without it."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import as_completed
from typing import Any

from loky import ProcessPoolExecutor

from tfdist.errors import TfdistError


def in_processes(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], processes: int) -> Iterator[Any]:
    """Yield the results of a function for each tuple of arguments, as they are ready.

    The first error stops the rest, and so does leaving the iteration. No process stays.

    Raises:
        TfdistError: a process was killed, for instance because memory ran out.
    """
    pool = ProcessPoolExecutor(max_workers=processes)
    ended_well = False
    try:
        futures = [pool.submit(function, *task) for task in tasks]
        for future in as_completed(futures):
            error = future.exception()
            if error is not None and type(error).__name__ in ("TerminatedWorkerError", "BrokenProcessPool"):
                raise TfdistError(
                    f"a process that wrote shards was ended from outside ({error}). If memory ran out, pass "
                    "processes=1; run again to go on behind the shards that are finished."
                ) from error
            yield future.result()
        ended_well = True
    finally:
        pool.shutdown(wait=True, kill_workers=not ended_well)
