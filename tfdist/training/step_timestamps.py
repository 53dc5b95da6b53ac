"""Timestamps of a step's parts, if this process records them; see `tfdist.monitor.recording.graph_stamps`."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.compat.tensorflow import traced_uses
from tfdist.monitor.process_clock import recorder
from tfdist.monitor.recording import graph_stamps
from tfdist.monitor.recording.device_rows import DeviceRows
from tfdist.monitor.recording.recorder import Recorder
from tfdist.monitor.recording.stamp_rows import CompiledRows, OperationRows, PassesRow
from tfdist.native.device_stamp_ops import device_stamp_ops
from tfdist.native.stamp_ops import stamp_ops

_rows: graph_stamps.Rows | None = None
_is_asked = False


def ask() -> None:
    """Have the steps that are traced from now on stamped, also where nothing records them."""
    global _is_asked
    _is_asked = True


def can_stamp() -> bool:
    """True in a trace of a process that records steps, or whose stamps are asked for; and that can stamp them."""
    if tf.executing_eagerly() or not (_is_asked or recorder() is not None):
        return False
    if not _is_on_gpu():
        return graph_stamps.can_stamp()
    return device_stamp_ops() is not None and isinstance(_rows, DeviceRows | None)


def taken() -> tuple[int, Any]:
    """The stamps of this process' steps, see `graph_stamps.Rows.read`; none before the first step is traced."""
    return (0, ()) if _rows is None else _rows.read()


def is_first_replica() -> bool:
    """True for the replica of a process whose step is stamped."""
    return tf_strategies.replica_index() % len(tf.distribute.get_strategy().extended.worker_devices) == 0


def stamped(run: Callable[[Any], Any], data: Any) -> Any:
    """Trace a replica's step with stamps."""
    with graph_stamps.Stamps(_rows_of_this_process()) as stamps:
        returned = run(stamps.from_begin(data))
        stamps.end()
        return returned


@contextlib.contextmanager
def passes_told(data: Any) -> Iterator[tuple[Any, PassesRow | None]]:
    """Stamp the part of a step that is traced in the block, where steps are recorded."""
    if _is_on_gpu() or not can_stamp():
        yield data, None
        return
    row = PassesRow(traced_uses.independent)
    with graph_stamps.Stamps(row) as stamps:
        yield stamps.from_begin(data), row


def record_with(observer: Recorder) -> None:
    """Hand the stamps of this process' steps to a recorder, also of functions that are traced already."""
    if isinstance(_rows, DeviceRows):
        observer.take_stamps_from(_rows.read_both, of_device=True)
    elif _rows is not None:
        observer.take_stamps_from(_rows.read)


def new_rows() -> graph_stamps.Rows:
    """Rows for stamps, by compiled operations where they are available."""
    of_device = device_stamp_ops() if _is_on_gpu() else None
    if of_device is not None:
        return DeviceRows(of_device, traced_uses.independent)
    ops = stamp_ops()
    return OperationRows(traced_uses.independent) if ops is None else CompiledRows(ops, traced_uses.independent)


def _rows_of_this_process() -> graph_stamps.Rows:
    global _rows
    if _rows is None:
        _rows = new_rows()
        if (observer := recorder()) is not None:
            record_with(observer)
    return _rows


def _is_on_gpu() -> bool:
    """True where the replica being traced computes on a GPU."""
    devices = tf.distribute.get_strategy().extended.worker_devices
    return bool(tf.DeviceSpec.from_string(devices[0]).device_type == "GPU")
