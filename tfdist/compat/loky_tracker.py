"""End loky's tracker process with the last pool that uses it.

Private names, read in loky 3.7: `_resource_tracker` of `loky.backend.resource_tracker`, its `_pid`, None while it has
no process, and `_stop`, which ends that; `_call_queue` of an executor and its `_thread`, which feeds that queue. loky
has no public name for them. The tracker is left to end with this process where `_stop` takes no time limit, as in
earlier versions: a pool of somebody else's could hold it up. So it is behind a pool whose work was broken off: what
that had may still be named by an error, and the tracker would complain of it. It would complain as well of what the
feeding thread holds, which loky does not wait for: so it is waited for here.
"""

import inspect
import threading

from loky import ProcessPoolExecutor
from loky.backend import resource_tracker

_WAIT_SECONDS = 2.0

_lock = threading.Lock()
_pools = 0
_is_ours = False


def started(processes: int) -> ProcessPoolExecutor:
    """Start a pool of processes, and note that there is one more."""
    global _pools, _is_ours
    with _lock:
        if not _pools:
            _is_ours = resource_tracker._resource_tracker._pid is None
        _pools += 1
    return ProcessPoolExecutor(max_workers=processes)


def end(pool: ProcessPoolExecutor, *, at_once: bool) -> None:
    """End a pool, and the tracker behind the last one if it was started for them."""
    feeder = getattr(pool._call_queue, "_thread", None)
    is_fed = False
    try:
        pool.shutdown(wait=True, kill_workers=at_once)
    finally:
        if feeder is not None:
            feeder.join(_WAIT_SECONDS)
            is_fed = feeder.is_alive()
        _left(broken_off=at_once or is_fed)


def _left(*, broken_off: bool) -> None:
    global _pools, _is_ours
    tracker = resource_tracker._resource_tracker
    with _lock:
        _pools -= 1
        _is_ours = _is_ours and not broken_off
        if _pools or not _is_ours or "wait_timeout" not in inspect.signature(tracker._stop).parameters:
            return
        tracker._stop(wait_timeout=_WAIT_SECONDS)
