"""Hands a job to its exporters, from its begin, or from now on, to its end: what `tfdist export` does."""

import time
from collections.abc import Callable, Sequence
from functools import partial

from tfdist.monitor.exporters.exporter_names import Target, make
from tfdist.monitor.exporters.feed import Feed
from tfdist.monitor.exporters.outlet import Outlet
from tfdist.waiting import Flag

LOOK_SECONDS = 1.0
#: that exporters have at the end
END_SECONDS = 15.0
#: of the time, the part that looks may take
_SHARE = 1 / 30


def export(
    feed: Feed,
    targets: Sequence[Target],
    *,
    warn: Callable[[str], None],
    enough: Flag,
    look_seconds: float = LOOK_SECONDS,
) -> bool:
    """Look at the job again and again, and hand over what is new, until it ends or it is enough."""
    outlets = [Outlet(str(target), partial(make, target), warn) for target in targets]
    is_last = False
    while not is_last:
        begun = time.monotonic()
        update = feed.look(is_last=enough.is_set())
        if update is None:
            break
        for outlet in outlets:
            outlet.put(update)
        is_last = update.is_last
        if not is_last:
            enough.wait(max(look_seconds, (time.monotonic() - begun) / _SHARE))
    deadline = time.monotonic() + END_SECONDS
    ended = [outlet.end(deadline) for outlet in outlets]
    for target, is_through in zip(targets, ended, strict=True):
        if not is_through:
            warn(f"warning: export to {target}: did not end within {END_SECONDS:.0f} s; its last points are missing")
    return all(ended)
