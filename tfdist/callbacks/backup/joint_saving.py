"""Save one state jointly, when each worker has a part of it.

All come to the same decisions at the same steps, so that they submit the same saves. Each writes its own part to where
the chief writes; where a worker does not see that place, because disks are not shared, parts travel to the chief.
"""

import contextlib
import secrets
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from tfdist.callbacks.backup import array_broadcast
from tfdist.checkpoint.background_writer import Writer
from tfdist.checkpoint.checkpoint_manifest import Joint, Part
from tfdist.checkpoint.checkpoint_store import Store
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.errors import StorageError

_Arrays = Mapping[str, NDArray[Any]]


class Together:
    """The saves of one training.

    Attributes:
        is_joint: whether all workers take part in a save.
    """

    def __init__(self, workers: Workers, *, has_parts: bool) -> None:
        self._workers = workers
        self._has_parts = has_parts
        self.is_joint = has_parts and workers.count > 1
        self._count = 0
        self._run = f"{int(workers.gather([secrets.randbits(32)])[0, 0]):08x}" if self.is_joint else ""

    def share(self, store: Store) -> bool:
        """Return whether all workers see what the chief writes to a store; all must ask."""
        if not self.is_joint:
            return True
        with contextlib.suppress(StorageError):  # it is said when something is saved
            if self._workers.is_chief:
                store.leave_sign(self._run)
        self._workers.gather([0])  # now it is there
        found = bool(self._workers.gather([store.has_sign(self._run)]).all())
        if self._workers.is_chief:
            store.remove_sign(self._run)
        return found

    @property
    def takes_part(self) -> bool:
        """Whether this worker has something to do when a state is saved."""
        return self._workers.is_chief or self.is_joint

    def may_submit(self, writer: Writer) -> bool:
        """Return whether a state may be submitted now; all who take part must ask.

        Alone the chief may always: what waits is replaced. Together none may be, or parts of two states would wait for
        each other, so a state is left out while a worker still saves the one before.
        """
        return not self.is_joint or not self._workers.gather([writer.is_busy]).any()

    def longest(self, value: int) -> int:
        """Return the largest value of all workers; all must ask."""
        return int(self._workers.gather([value]).max())

    def submit(
        self,
        writer: Writer,
        number: int,
        arrays: _Arrays,
        state: Mapping[str, Any],
        part: _Arrays,
        *,
        is_shared: bool,
        timeout_seconds: float = 120.0,
    ) -> None:
        """Save a state; all who take part must call it with the same number, and the chief's arrays and state count."""
        own = Part(index=self._workers.index, arrays=part)
        if not self.is_joint:
            writer.submit(number, arrays, state, parts=[own] if self._has_parts else ())
        elif not is_shared:
            parts = [self._part_of(index, part) for index in range(self._workers.count)]
            if self._workers.is_chief:
                writer.submit(number, arrays, state, parts=parts)
        else:
            self._count += 1
            joint = Joint(run=self._run, number=self._count, count=self._workers.count, timeout_seconds=timeout_seconds)
            if self._workers.is_chief:
                writer.submit(number, arrays, state, parts=[own], joint=joint)
            else:
                writer.submit_part(number, own, joint)

    def _part_of(self, index: int, own: _Arrays) -> Part:
        """Return a worker's part, as it travels; on the chief no more memory is held than that of all parts."""
        arrays, _ = array_broadcast.from_worker(index, self._workers, own, None)
        return Part(index=index, arrays=arrays if self._workers.is_chief else {})
