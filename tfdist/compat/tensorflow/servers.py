"""TensorFlow's remote devices: a chief that computes on workers and keeps variables on parameter servers.

Private names, read in TensorFlow 2.21.0:

- `context.context().update_server_def`, `_server_def`: bring a restarted task back into the cluster; TensorFlow's only
  caller is `ClusterCoordinator`, which repeats a half-applied closure on another worker
- `OneDeviceExtended` and its methods: the members that Keras needs of a strategy
- `executor`, `context.context().executor`: a thread's own executor; `EagerContext::SyncExecutors`, part of every remote
  call, uses the executors of all threads without holding references to them
- `context.async_wait`: raises errors of other tasks in the next caller that waits
- `_cluster_coordinator`: the attribute that `ClusterCoordinator` first reads of a strategy
- `Graph.device(function)`: places an operation where its inputs are; `tf.device` takes names only
- the name scopes in `global_state` of Keras 3.15.1: name the object that is creating a variable
"""

import contextlib
import ctypes
import queue
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.distribute import distribute_lib
from tensorflow.python.distribute.one_device_strategy import OneDeviceExtended
from tensorflow.python.eager import context, executor

from tfdist.compat.keras import keras_frames, keras_variables
from tfdist.compat.tensorflow import new_variables
from tfdist.compat.tensorflow import partitioned as tf_partitioned
from tfdist.errors import UnsupportedError

CHIEF = "/job:chief/replica:0/task:0/device:CPU:0"
_CONNECT_SECONDS = 1.0
_FORGET_SECONDS = 5.0
_FRAMES = 20  # from an optimizer's step to an update of a variable


class NoCoordinator:
    """A strategy that TensorFlow's `ClusterCoordinator` must not drive."""

    @property
    def _cluster_coordinator(self) -> Any:
        raise UnsupportedError(
            "ClusterCoordinator received a ParameterServerStrategy of tfdist, whose chief hands out batches by itself. "
            "Call model.fit, or run the steps of a loop of your own by strategy.run, on the chief. A loop that "
            "schedules functions on workers needs tf.distribute.ParameterServerStrategy.",
            name="ClusterCoordinator",
        )


def server(index: int) -> str:
    """Return the device on which a parameter server keeps variables."""
    return f"/job:ps/replica:0/task:{index}/device:CPU:0"


def worker(index: int, kind: str = "CPU") -> str:
    return f"/job:worker/replica:0/task:{index}/device:{kind}:0"


def connect(chief: str, workers: Sequence[str], servers: Sequence[str]) -> None:
    """Make this process the chief of a cluster, and wait until all other tasks run."""
    cluster = tf.train.ClusterSpec({"chief": [chief], "worker": list(workers), "ps": list(servers)})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
        cluster, task_type="chief", task_id=0, rpc_layer="grpc"
    )
    # No device filters: with them, a restarted worker would never learn of the parameter servers.
    tf.config.experimental_connect_to_cluster(
        resolver, job_name="chief", task_index=0, protocol="grpc", make_master_device_default=False
    )


def connected_cluster() -> dict[str, list[str]] | None:
    """Return the addresses of all tasks by job; None if this process is connected to no cluster."""
    definition = _definitions[0] if _definitions else context.context()._server_def
    if definition is None:
        return None
    return {job.name: [job.tasks[task] for task in sorted(job.tasks)] for job in definition.cluster.job}


def reconnect(workers: Sequence[str]) -> None:
    """Connect again to these workers, which must all answer; call this while no parameter server is in use."""
    known = context.context()
    if not _definitions:
        _definitions.append(known._server_def)
    definition = type(_definitions[0])()
    definition.CopyFrom(_definitions[0])
    for job in definition.cluster.job:
        if job.name == "worker":
            for task in [task for task, address in job.tasks.items() if address not in workers]:
                del job.tasks[task]
    known.update_server_def(definition)


#: The cluster to which this process connected first, with all its tasks.
_definitions: list[Any] = []


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS):
        return True
    return False


def is_loss(error: BaseException) -> bool:
    """Return whether an error may mean that a task has gone, rather than that the computation is wrong."""
    if isinstance(error, (tf.errors.UnavailableError, tf.errors.AbortedError)):
        return True
    # A restarted task does not know the context that it had before.
    text = str(error)
    remote = "/job:" in text or "context_id" in text or "GRPC" in text or "remote" in text.lower()
    return (
        remote
        and isinstance(error, (tf.errors.InvalidArgumentError, tf.errors.CancelledError, tf.errors.InternalError))
        and any(
            words in text
            for words in (
                "Unable to find a context_id",
                "not found in",
                "Socket closed",
                "Connection reset",
                "Cancelled",
            )
        )
    )


@contextlib.contextmanager
def calls_on(device: str | None) -> Iterator[None]:
    """Run the block on a device, and let the thread be used again if the block fails; None changes nothing."""
    if device is None:
        yield
        return
    mine = own_executor()
    try:
        with tf.device(device):
            yield
    except BaseException:
        mine.clear_error()
        raise


def own_executor(*, fresh: bool = False) -> Any:
    """Give this thread its own executor and return it. In a shared one a hanging worker would block other threads."""
    mine = getattr(_threads, "executor", None)
    if mine is not None and fresh:
        if not _left:
            _left.append(queue.SimpleQueue())
            threading.Thread(target=_wait_for, args=(_left[0],), name="tfdist-executors", daemon=True).start()
        _left[0].put(mine)
        mine = None
    if mine is None:
        try:
            mine = _idle.get_nowait()
        except queue.Empty:
            mine = executor.new_executor(enable_async=False)
            # A call to another task waits for the executors of all threads. If one is being deleted, TensorFlow ends
            # the process. So the few executors of a process are never deleted.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(mine))
        # The thread keeps its executor: to restore the shared one, as `executor_scope` does, TensorFlow waits for all
        # operations in it.
        _threads.executor = context.context().executor = mine
    return mine


def _wait_for(executors: "queue.SimpleQueue[Any]") -> None:
    """Wait for each abandoned executor in turn, and offer it to other threads."""
    while True:
        left = executors.get()
        with contextlib.suppress(tf.errors.OpError):
            left.wait()
        left.clear_error()
        _idle.put(left)


def forget_failures() -> None:
    """Discard failures of other tasks that have been raised already, so that TensorFlow does not raise them again."""

    def forget() -> None:
        for _ in range(_MOST_FAILURES):
            try:
                context.async_wait()
            except tf.errors.OpError:
                continue
            return

    thread = threading.Thread(target=forget, name="tfdist-failures", daemon=True)
    thread.start()
    thread.join(_FORGET_SECONDS)


_MOST_FAILURES = 100  # each task may have one
_threads = threading.local()
_left: list[queue.SimpleQueue[Any]] = []
_idle: queue.SimpleQueue[Any] = queue.SimpleQueue()


def is_passing(error: BaseException) -> bool:
    """Return whether an error comes from a call during a new connection to another task."""
    return isinstance(error, tf.errors.OpError) and "Primary device is not remote" in str(error)


def has_gpu(index: int) -> bool:
    """Return whether a worker of the connected cluster has a GPU."""
    prefix = f"/job:worker/replica:0/task:{index}/device:GPU"
    return any(device.name.startswith(prefix) for device in tf.config.list_logical_devices("GPU"))


@contextlib.contextmanager
def where_the_data_is() -> Iterator[None]:
    """Place traced operations on the parameter server of their first input, or on the chief; only scalars travel."""
    graph = tf.compat.v1.get_default_graph()

    def place(op: Any) -> str:
        if op.device:
            return str(op.device)
        homes = (tensor.device for tensor in op.inputs if "/job:ps" in (tensor.device or ""))
        return next(homes, CHIEF)

    with graph.device(place):
        yield


def copy_of(variable: tf.Variable, strategy: tf.distribute.Strategy) -> tf.Variable:
    """Return a copy of a variable, with its value, on the current device."""
    copy = tf.Variable(
        variable.read_value(),
        trainable=variable.trainable,
        name=variable.name.partition(":")[0],
        synchronization=variable.synchronization,
        aggregation=variable.aggregation,
    )
    copy._distribute_strategy = strategy
    return copy


class ServerVariables(OneDeviceExtended):
    """An extended strategy whose chief holds small state itself, and whose parameter servers hold other variables."""

    def __init__(
        self,
        container_strategy: Any,
        *,
        place: Callable[[str, tf.TensorShape, tf.DType], Any],
        bind: Callable[[keras.optimizers.Optimizer], None],
    ) -> None:
        super().__init__(container_strategy, CHIEF)
        self._place = place
        self._bind = bind
        self._bound: weakref.WeakSet[keras.optimizers.Optimizer] = weakref.WeakSet()

    def _use_merge_call(self) -> bool:
        return bool(tf.executing_eagerly())

    def _create_variable(self, next_creator: Any, **kwargs: Any) -> Any:
        self._container_strategy().on_variable()
        reference = kwargs.pop("colocate_with", None)
        value = kwargs["initial_value"]
        shape, dtype = new_variables.shape_of_new_variable(value, kwargs.get("shape"), kwargs.get("dtype"))
        # The chief holds small state: counts of metrics and optimizers, and the states of random numbers.
        counts = kwargs.get("synchronization") == tf.VariableSynchronization.ON_READ
        scalar = shape is not None and shape.rank == 0 and not kwargs.get("trainable", True)
        if shape is None or counts or scalar or isinstance(keras_variables.creator(), keras.random.SeedGenerator):
            with tf.device(CHIEF):
                return next_creator(**kwargs)
        if isinstance(reference, tf_partitioned.PartitionedVariable) and reference.shape == shape:
            devices, boundaries = reference.devices, reference.boundaries
        elif isinstance(reference, tf.Variable) and reference.device:
            devices, boundaries = [reference.device], None
        else:
            path = keras_variables.path_of_new_variable(kwargs.get("name") or "variable")
            devices, boundaries = self._place(path, shape, dtype)
        if boundaries is None:
            with tf.device(devices[0]):
                return next_creator(**kwargs)
        return tf_partitioned.create(
            next_creator, kwargs, shape, dtype, devices, boundaries, self._container_strategy()
        )

    def _call_for_each_replica(self, fn: Any, args: Any, kwargs: Any) -> Any:
        # No device is set, because the caller decides where operations run.
        with distribute_lib.ReplicaContext(self._container_strategy(), replica_id_in_sync_group=0):
            return fn(*args, **kwargs)

    def _validate_colocate_with_variable(self, colocate_with_variable: Any) -> None:
        if not isinstance(colocate_with_variable, tf_partitioned.PartitionedVariable):
            super()._validate_colocate_with_variable(colocate_with_variable)

    def _update(self, var: Any, fn: Any, args: Any, kwargs: Any, group: bool) -> Any:
        if isinstance(var, tf_partitioned.PartitionedVariable):
            optimizer = keras_frames.innermost(keras.optimizers.Optimizer, _FRAMES)
            if optimizer is not None and optimizer not in self._bound:  # as in a loop of the user's own
                self._bind(optimizer)
                self._bound.add(optimizer)
            # before a slot among the arguments has the values of one part
            cut = [tuple(tf_partitioned.rows_for(var, index, arg) for arg in args) for index in range(len(var.parts))]
            results = [self._update(part, fn, cut[index], kwargs, group) for index, part in var.focused()]
            return results[-1]
        with tf.device(var.device), distribute_lib.UpdateContext(var.device):
            result = fn(var, *args, **kwargs)
        return result if group else tf.nest.map_structure(self._local_results, result)
