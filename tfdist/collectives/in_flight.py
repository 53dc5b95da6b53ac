"""The record of collectives in flight, for backends that cannot report what they wait for.

Two compiled operations next to each collective note that its inputs, and then its result, are there. They take and
return nothing, so nothing of the step waits for them. TensorFlow's variables would order conditions of replicas, and
block them. The operations are left out if the process cannot be asked for stacks.
"""

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import traced_uses
from tfdist.native.stamp_ops import SLOTS, StampOps, stamp_ops_if_kept
from tfdist.variables import STACKS_FILE

_NAMED = 2  # of those that a process is in


class UnderWay:
    """The collectives that are in flight in this process."""

    def __init__(self, library: StampOps) -> None:
        self._library = library
        self._names: list[str] = []
        self._eager: dict[object, str] = {}
        self._lock = threading.Lock()

    def noted(
        self, name: str, device: str, given: Sequence[tf.Tensor], run: Callable[[], list[tf.Tensor]]
    ) -> list[tf.Tensor]:
        """Run or trace a collective, which is noted while it is in flight if there is a free slot."""
        if tf.executing_eagerly():
            with self._eagerly(name):
                return run()
        with self._lock:
            slot = len(self._names)
            if slot == SLOTS:
                return run()
            self._names.append(name)
        begun = self._note(slot, 1, device, given)
        results = run()
        self._note(slot, 0, device, [*results, begun])  # behind the other, which may be late
        return results

    def text(self) -> str:
        """Describe the collectives in flight in this process, from any thread; "" if there are none."""
        with self._lock:
            now = self._library.under_way(len(self._names))
            found = [name for name, is_in in zip(self._names, now, strict=True) if is_in] + list(self._eager.values())
        return " and ".join(found[:_NAMED]) + (f" and {len(found) - _NAMED} more" if len(found) > _NAMED else "")

    @contextlib.contextmanager
    def _eagerly(self, name: str) -> Iterator[None]:
        one = object()
        with self._lock:
            self._eager[one] = name
        try:
            yield
        finally:
            with self._lock:
                del self._eager[one]

    def _note(self, slot: int, value: int, device: str, after: Sequence[Any]) -> Any:
        spec = tf.DeviceSpec.from_string(device)
        if spec.device_type != "CPU":
            spec = spec.replace(device_type="CPU", device_index=0)
        with tf.device(spec.to_string()), tf.control_dependencies(after):
            return traced_uses.independent(self._library.ops.tfdist_note(slot=slot, value=value))


@functools.cache
def of_process() -> UnderWay | None:
    """Return the record of this process's collectives; None without readers, or without compiled ops."""
    library = stamp_ops_if_kept() if STACKS_FILE.read(os.environ) else None
    return None if library is None else UnderWay(library)


def described(kind: str, tensors: Sequence[Any]) -> str:
    counts = [tensor.shape.num_elements() for tensor in tensors]
    if None in counts:
        return kind
    return f"{kind} of {sum(n * tensor.dtype.size for n, tensor in zip(counts, tensors, strict=True))} bytes"
