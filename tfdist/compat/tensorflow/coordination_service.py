"""Key-value notes between workers. TensorFlow has no public way to wait for one worker without a collective of all.

Private names, read in TensorFlow 2.21.0: `set_config_key_value`, `get_config_key_value`, `coordination_service` and
`configure_coordination_service` of `tensorflow.python.eager.context`; `coordination_leader`; `CoordinatedJob`, which
is taken from the module of TensorFlow's own strategy, because its own module moves between versions.
"""

import contextlib
from typing import Any

import tensorflow as tf
from tensorflow.python.distribute import multi_worker_util
from tensorflow.python.distribute.collective_all_reduce_strategy import coordination_config_pb2
from tensorflow.python.eager import context

# TensorFlow's default of 10 s ends a job whose link is full for 5 s (a heartbeat waits behind 100 MB of weights), or
# whose machine is stopped for 10 s. This limit does not delay the detection of a dead process, whose connections close.
_SILENCE_SECONDS = 100


def watch(resolver: Any) -> None:
    """Let workers watch each other's heartbeats as TensorFlow does by default, but with a longer deadline."""
    spec, kind = resolver.cluster_spec(), resolver.task_type
    if context.context().coordination_service is not None or kind not in ("chief", "worker"):
        return
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader=multi_worker_util.coordination_leader(spec),
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(name=job, num_tasks=spec.num_tasks(job))
            for job in ("chief", "worker")
            if job in spec.jobs
        ],
        heartbeat_timeout_in_ms=_SILENCE_SECONDS * 1000,
    )


def leave_note(key: str, text: str) -> None:
    """Leave a note for tasks that wait for it now or later. A second note with the same key is ignored."""
    with contextlib.suppress(tf.errors.AlreadyExistsError):
        context.context().set_config_key_value(key, f"note:{text}")


def wait_for_note(key: str, timeout_seconds: float) -> str | None:
    """Wait until another worker has left this note, and return its text; None if it was not left in time."""
    try:
        note = context.context().get_config_key_value(key, int(timeout_seconds * 1000))
    except (tf.errors.DeadlineExceededError, tf.errors.UnavailableError, tf.errors.CancelledError):
        return None
    return str(note).removeprefix("note:")
