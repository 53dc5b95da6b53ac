"""Data parallelism with variables on parameter servers: asynchronous, with bounded staleness, or synchronous."""

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist import validation
from tfdist.collectives.workers.worker_processes import Workers
from tfdist.compat.keras import keras_trainer, keras_variables
from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.tensorflow import partitioned as tf_partitioned
from tfdist.compat.tensorflow import servers as tf_servers
from tfdist.errors import ConfigError, DeadlineError, ServerLostError, UnsupportedError
from tfdist.jobs.placement.local_tasks import LocalTasks
from tfdist.training.parameter_servers import variable_placement as placement
from tfdist.training.parameter_servers.chief import Chief
from tfdist.training.parameter_servers.dropped_parts import Dropped
from tfdist.training.parameter_servers.scheduler import Scheduler
from tfdist.training.parameter_servers.staleness import Distribution
from tfdist.training.parameter_servers.variable_placement import Piece
from tfdist.training.parameter_servers.worker_groups import WorkerGroups
from tfdist.training.strategy_mixin import KerasTraining

__all__ = ["ParameterServerStrategy"]

Partitioner = Callable[..., Sequence[int]]

_LOOK_SECONDS = 0.5
# After a model is built, its variables are moved only if the load of the fullest server falls to at most this fraction.
_WORTH_MOVING = 0.95


class ParameterServerStrategy(KerasTraining, tf_servers.NoCoordinator, tf.distribute.Strategy):
    """A `tf.distribute.Strategy` whose workers may come and go, and whose variables are on parameter servers.

    One process, the chief, runs the script. It reads the data, hands batches to the workers, and applies each gradient
    on the servers exactly once. Each update is applied as a whole and counted. So `iterations` and metrics always match
    the updates that were applied, whatever happens to workers.

    With ``max_staleness=0`` all workers compute parts of each batch, and training has the numbers of one device. With
    ``max_staleness=s`` or None one worker computes a whole batch. Its gradient is applied when it arrives. Up to s
    updates (None: any number) may have changed the weights since the worker read them.

    In that case `fit` adds ``staleness_mean`` and ``staleness_max`` to the logs of an epoch.

    Args:
        cluster: addresses of chief, workers and parameter servers. None calls `tfdist.cluster.from_environment`; if the
            environment names no parameter servers, workers and servers are started on this host.
        local_workers: how many workers to start on this host in that case.
        local_servers: how many parameter servers to start on this host in that case.
        max_staleness: how many updates may be applied between the start of a worker's batch and the update with its
            gradient. To keep n workers busy it must be at least n - 1. None: no bound.
        backup_workers: with ``max_staleness=0`` and n workers, only the first n - backup_workers computed parts of a
            batch count, weighted by their examples. The others are dropped. They are counted in ``dropped``, in the log
            ``dropped_examples`` of each epoch, and in a warning at the end of `fit`.
        groups: with ``max_staleness=s`` above 0, groups of workers of different speed. The bound s then counts only the
            updates of a gradient's own group, and groups do not wait for each other. Pass a mapping of names to
            workers, such as ``{"fast": ("worker-0",), "slow": ("worker-1", "worker-2")}``. "auto" forms groups of
            workers that take about as long for a batch.
        staleness_correction: whether the learning rate of a gradient of staleness t is divided by max(1, t).
        variable_partitioner: a function that takes ``shape`` and ``dtype`` of a variable and returns the number of
            parts along each axis, as in `tf.distribute.experimental.partitioners`. Only the first axis may be cut.
            Parts are updated one by one, so the optimizer must update each element by itself.
        worker_timeout_seconds: how long a worker may compute a batch before another worker gets it. The first batch
            of its kind may take three times as long.
        timeout_seconds: how long to wait for tasks to start, for servers to apply an update, and for a worker to
            come back when none is left.
        loss_reduction: how losses that your code reduces itself depend on examples: "mean" or "sum". Such code is a
            `train_step`, a `compute_loss`, or a loss function that returns one number. "detect" tries a few rows.

    Raises:
        ConfigError: arguments do not fit, this process is not the chief, or TensorFlow is already connected to another
            cluster.
        DeadlineError: a task has not started in time.
        UnsupportedError: in `fit`: a variable is cut, and the optimizer may use the whole of it, as LARS, Lamb,
            Adafactor and Muon do.

    Example:
        >>> strategy = ParameterServerStrategy(local_workers=2, local_servers=2)    # doctest: +SKIP
        >>> with strategy.scope():                                                # doctest: +SKIP
        ...     model = keras.Sequential([keras.layers.Embedding(10_000, 16), ...])
        ...     model.compile("adagrad", "mse")
        >>> model.fit(x, y, batch_size=64, epochs=3)                              # doctest: +SKIP

    Source: J. Dean et al., "Large Scale Distributed Deep Networks", 2012; M. Li et al., "Scaling Distributed Machine
    Learning with the Parameter Server", 2014; W. Zhang et al., "Staleness-aware Async-SGD for Distributed Deep
    Learning", 2016 (the correction); J. Chen et al., "Revisiting Distributed Synchronous SGD", 2016 (backup workers);
    H. Sun et al., "GSSP", 2021 (groups).
    In these papers workers push gradients, which servers add. Here the chief decides when to apply a gradient. This
    makes updates atomic and staleness exact, and limits updates to several hundred per second.
    """

    _takes_shares = False

    def __init__(
        self,
        cluster: "clusters.Cluster | None" = None,
        *,
        local_workers: int = 2,
        local_servers: int = 1,
        max_staleness: int | None = None,
        backup_workers: int = 0,
        groups: "str | Mapping[str, Sequence[str]] | None" = None,
        staleness_correction: bool = False,
        variable_partitioner: Partitioner | None = None,
        worker_timeout_seconds: float = 120.0,
        timeout_seconds: float = 600.0,
        loss_reduction: str = "detect",
    ) -> None:
        self.loss_reduction = loss_reduction
        if max_staleness is not None:
            validation.integer("max_staleness", max_staleness, minimum=0)
        validation.integer("backup_workers", backup_workers, minimum=0)
        validation.boolean("staleness_correction", staleness_correction)
        validation.number("worker_timeout_seconds", worker_timeout_seconds, above=0)
        validation.number("timeout_seconds", timeout_seconds, above=0)
        if variable_partitioner is not None and not callable(variable_partitioner):
            raise ConfigError(
                f"variable_partitioner is {variable_partitioner!r}; it must be callable, or None.",
                name="variable_partitioner",
                received=variable_partitioner,
            )
        cluster = clusters.from_environment() if cluster is None else cluster
        count = len(cluster.addresses) if cluster.parameter_servers else local_workers
        validation.integer("local_workers", count, minimum=1)
        if backup_workers and (max_staleness != 0 or backup_workers >= count):
            raise ConfigError(
                f"backup_workers is {backup_workers}, with max_staleness={max_staleness} and "
                f"{validation.counted(count, 'worker')}; it needs max_staleness=0, and must leave one worker at least.",
                name="backup_workers",
                received=backup_workers,
            )
        grouped = WorkerGroups(count, groups, bound=max_staleness)
        self._tasks, addresses = _tasks(cluster, local_workers, local_servers)
        self._addresses = addresses
        self._partitioner = variable_partitioner
        self._loads = [0] * len(addresses["ps"])
        self._pieces: dict[str, list[Piece]] = {}
        self._spread_already: set[int] = set()
        self._workers = Workers()
        try:
            _connect(addresses, self._tasks, timeout_seconds)
        except BaseException:
            if self._tasks is not None and tf_servers.connected_cluster() is None:
                self._tasks.end()  # the next strategy starts its own
                _local.remove(self._tasks)
            raise
        extended = tf_servers.ServerVariables(self, place=self._place, bind=_bind)
        tf.distribute.Strategy.__init__(self, extended)
        self._scheduler = Scheduler(
            count,
            _Transport(addresses, self._tasks),
            timeout_seconds=worker_timeout_seconds,
            lost_seconds=timeout_seconds,
            on_change=lambda sentence: logging.getLogger("tfdist").warning("tfdist: %s", sentence),
        )
        self._chief = Chief(
            self,
            self._scheduler,
            [tf_servers.worker(index, "GPU" if tf_servers.has_gpu(index) else "CPU") for index in range(count)],
            max_staleness=max_staleness,
            backup_workers=backup_workers,
            groups=grouped,
            corrects_rate=staleness_correction,
            timeout_seconds=timeout_seconds,
            require_servers=lambda: _require_servers(addresses["ps"]),
            when_built=self._when_built,
        )

    @property
    def num_workers(self) -> int:
        """Number of workers, including those that are missing at the moment."""
        return len(self._addresses["worker"])

    @property
    def num_servers(self) -> int:
        """Number of parameter servers."""
        return len(self._addresses["ps"])

    @property
    def staleness(self) -> Distribution:
        """The distribution of the staleness of all gradients that were applied, over all models.

        Example:
            >>> print(strategy.staleness)                                         # doctest: +SKIP
            400 gradients, staleness mean 1.02, median 1, 95 % at most 2, largest 4
        """
        return self._chief.staleness

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The present groups of workers. Without the argument ``groups`` there is one group with all workers.

        Example:
            >>> strategy.groups                                                   # doctest: +SKIP
            {'group-1': ('worker-0', 'worker-2'), 'group-2': ('worker-1',)}
        """
        now = self._chief.groups.now
        return {name: tuple(f"worker-{index}" for index in workers) for name, workers in now.items()}

    @property
    def dropped_examples(self) -> int:
        """The number of examples whose gradients came too late; see ``backup_workers``."""
        return self._chief.dropped.examples

    @property
    def dropped(self) -> Dropped:
        """The examples that ``backup_workers`` have dropped so far, by worker and by step.

        Example:
            >>> print(strategy.dropped)                                           # doctest: +SKIP
            96 of 4,800 examples in 300 steps were dropped (worker 2 was late with 96)
            >>> strategy.dropped.parts[-1]                                        # doctest: +SKIP
            DroppedPart(step=298, worker=2, first=10, examples=6)
        """
        return self._chief.dropped

    @property
    def lost_workers(self) -> int:
        """The number of times that a worker was lost or did not answer in time."""
        return self._scheduler.losses

    def placement(self) -> list[Piece]:
        """Return the variables, and parts of variables, on each parameter server.

        Example:
            >>> print(strategy.placement_table())                                 # doctest: +SKIP
        """
        return [piece for pieces in self._pieces.values() for piece in pieces]

    def placement_table(self) -> str:
        """Return the placement as a text table, with the bytes on each server."""
        return placement.table(self.placement(), self.num_servers)

    def close(self) -> None:
        """Give the workers no more batches, and end the tasks that this process has started."""
        self._scheduler.close()
        if self._tasks is not None:
            self._tasks.end()

    def experimental_distribute_dataset(self, dataset: Any, options: Any = None) -> Any:
        """Return the dataset in the form in which the chief hands it out. In a custom loop only the chief reads it.

        Args:
            dataset: a `tf.data.Dataset` of global batches.
            options: `tf.distribute.InputOptions`, as in TensorFlow.
        """
        epoch_iterator = keras_trainer.calling_epoch_iterator()
        if epoch_iterator is not None:
            keras_trainer.wait_for_nothing(epoch_iterator)  # it could wait for a stopped worker
        return super().experimental_distribute_dataset(dataset, options)

    @property
    def _slices(self) -> int:
        return self._chief.parts

    _predicts_from_input = False  # the chief hands out batches to workers
    _goes_ahead = False

    def _adopt(self, model: Any) -> None:
        self._chief.adopt(model)

    def _place(self, path: str, shape: tf.TensorShape, dtype: tf.DType) -> tuple[list[str], list[int] | None]:
        """Return the devices for a new variable, and the rows at which it is cut, or None."""
        row_bytes = (shape[1:].num_elements() or 1) * dtype.size
        rows = int(shape[0]) if shape.rank else 1
        parts = self._parts(path, shape, dtype)
        edges = placement.boundaries(rows, parts)
        sizes = [(end - begin) * row_bytes for begin, end in itertools.pairwise(edges)]
        servers = []
        for size in sizes:
            servers.append(placement.least_loaded(self._loads))
            self._loads[servers[-1]] += size
        shapes = [((end - begin), *shape[1:]) for begin, end in itertools.pairwise(edges)]
        unique = path if path not in self._pieces else f"{path} ({len(self._pieces)})"
        self._pieces[unique] = [
            Piece(
                path=path,
                part=part,
                parts=len(servers),
                shape=tuple(int(dim) for dim in shapes[part]) if shape.rank else (),
                bytes=sizes[part],
                server=servers[part],
            )
            for part in range(len(servers))
        ]
        devices = [tf_servers.server(server) for server in servers]
        return devices, edges if len(devices) > 1 else None

    def _parts(self, path: str, shape: tf.TensorShape, dtype: tf.DType) -> int:
        if self._partitioner is None or not shape.rank:
            return 1
        cuts = [int(cut) for cut in self._partitioner(shape=shape, dtype=dtype)]
        if len(cuts) != shape.rank or any(cut != 1 for cut in cuts[1:]) or cuts[0] < 1:
            raise ConfigError(
                f"variable_partitioner returned {cuts} for {path!r} of shape {tuple(shape)}; it must return one number "
                "for each axis, at least 1 for the first and 1 for the others, such as [2, 1].",
                name="variable_partitioner",
                received=cuts,
            )
        return cuts[0]

    def _when_built(self, model: keras.Model) -> None:
        self._spread(model)
        for optimizer in keras_trainer.optimizers(model):
            _bind(optimizer)

    def _spread(self, model: keras.Model) -> None:
        """Move a model's new variables, the largest first, if that relieves the fullest server."""
        placed = {device: index for index, device in enumerate(tf_servers.server(s) for s in range(self.num_servers))}
        fresh = [v for v in model.weights if id(v) not in self._spread_already]
        self._spread_already.update(id(v) for v in fresh)
        values = [(v, keras_variables.value_of(v)) for v in fresh]
        whole = [(v, one) for v, one in values if not isinstance(one, tf_partitioned.PartitionedVariable)]
        movable = [(v, one) for v, one in whole if getattr(one, "device", None) in placed]
        sizes = [value.shape.num_elements() * value.dtype.size for _, value in movable]
        fixed = list(self._loads)
        for (_, value), size in zip(movable, sizes, strict=True):
            fixed[placed[value.device]] -= size
        plan = placement.largest_first(sizes, self.num_servers, fixed)
        loads = list(fixed)
        for server, size in zip(plan, sizes, strict=True):
            loads[server] += size
        if not movable or max(loads) > _WORTH_MOVING * max(self._loads):
            return
        for (variable, value), server in zip(movable, plan, strict=True):
            if placed[value.device] != server:
                self._move(variable, server)
                for optimizer in keras_trainer.optimizers(model):
                    for slot in keras_optimizer.moved(optimizer, variable, value):
                        self._move(slot, server)
        self._loads = loads

    def _move(self, variable: Any, server: int) -> None:
        with tf.device(tf_servers.server(server)), tf.init_scope():
            moved = tf_servers.copy_of(keras_variables.value_of(variable), self)
        keras_variables.replace_value(variable, moved)
        for pieces in self._pieces.values():
            if pieces[0].path == variable.path and pieces[0].server != server:
                pieces[0] = dataclasses.replace(pieces[0], server=server)
                return


def _bind(optimizer: Any) -> None:
    """Let an optimizer update the parts of a variable one by one, each with the same parts of its slots."""
    variables = [
        v for v in optimizer.variables if isinstance(keras_variables.value_of(v), tf_partitioned.PartitionedVariable)
    ]
    trained = keras_optimizer.known_variables(optimizer) if optimizer.built else []
    parts: dict[int, list[Any]] = {}
    for position, variable in enumerate(trained):
        value = keras_variables.value_of(variable)
        if isinstance(value, tf_partitioned.PartitionedVariable):
            _require_elementwise(optimizer, variable)
            parts[position] = value.parts
            slots = [v for v in variables if keras_variables.value_of(v).boundaries == value.boundaries]
            value.bind(slots)
    keras_optimizer.bind_slots(optimizer, parts)


def _require_elementwise(optimizer: Any, variable: Any) -> None:
    name = keras_optimizer.of_whole_variables(optimizer)
    if name is not None:
        raise UnsupportedError(
            f"the variable {variable.path!r} is in parts on parameter servers, and the optimizer {name!r} is not known "
            "to update each element by itself: norms and means would be those of a part. Pass no "
            "variable_partitioner, let it return 1 for this variable, or train with SGD, Adam, AdamW, Adagrad, "
            "Adadelta, Adamax, Ftrl, Lion, Nadam or RMSprop.",
            name=name,
            received=variable.path,
        )


class _Transport:
    """The chief's connection to its workers."""

    def __init__(self, addresses: dict[str, list[str]], tasks: LocalTasks | None) -> None:
        self._addresses = addresses
        self._tasks = tasks

    def meaning(self, worker: int, error: BaseException) -> Literal["gone", "again", "wrong"]:
        if tf_servers.is_passing(error):
            return "again"
        if not tf_servers.is_loss(error):
            return "wrong"
        _require_servers(self._addresses["ps"])
        return "gone"

    def answers(self, worker: int) -> bool:
        return tf_servers.listens(self._addresses["worker"][worker])

    def wait_until_back(self, worker: int, closed: threading.Event) -> bool:
        while not closed.wait(_LOOK_SECONDS):
            if self._tasks is not None:
                self._tasks.revive("worker", worker)
            if tf_servers.listens(self._addresses["worker"][worker]):
                return True
        return False

    def bring_back(self, workers: Sequence[int]) -> bool:
        try:
            tf_servers.reconnect([self._addresses["worker"][worker] for worker in workers])
        except tf.errors.OpError:  # a worker was lost meanwhile
            return False
        return True


def _tasks(cluster: "clusters.Cluster", workers: int, servers: int) -> tuple[LocalTasks | None, dict[str, list[str]]]:
    """Return the addresses of all tasks, and the tasks that this process has started, or None."""
    if cluster.parameter_servers:
        if cluster.task.type != "chief":
            raise ConfigError(
                f"this process is {cluster.task} ({cluster.source}); ParameterServerStrategy is made by the chief. "
                "Workers and parameter servers need no script: start them with tfdist run, or as "
                "`python -m tfdist.jobs.process.script_worker --parent 0 --task` with their TF_CONFIG.",
                name="cluster",
                received=str(cluster.task),
            )
        chief = cluster.chief or "127.0.0.1:0"
        return None, {"chief": [chief], "worker": list(cluster.addresses), "ps": list(cluster.parameter_servers)}
    if cluster.num_workers > 1:
        raise ConfigError(
            f"{cluster.source} gives {cluster.num_workers} workers and no parameter server. Start the script with "
            f"tfdist run --strategy parameter-server -n {cluster.num_workers} --parameter-servers 1.",
            name="cluster",
            received=cluster.num_workers,
        )
    connected = tf_servers.connected_cluster()
    if connected is not None:
        if _local and _local[-1].cluster == connected:
            running = {job: len(connected[job]) for job in ("worker", "ps")}
            if running != {"worker": workers, "ps": servers}:
                raise ConfigError(
                    f"this process has started {validation.counted(running['worker'], 'worker')} and "
                    f"{validation.counted(running['ps'], 'parameter server')}, and is now asked for {workers} and "
                    f"{servers}. TensorFlow connects a process to one cluster: ask for the same again, or start a new "
                    "process (in a notebook: restart the kernel).",
                    name="cluster",
                    received=(workers, servers),
                )
            _require_servers(connected["ps"])
            return _local[-1], connected
        raise ConfigError(
            "this process is connected to another cluster, which TensorFlow cannot change. Start a new process (in a "
            "notebook: restart the kernel)."
        )
    validation.integer("local_servers", servers, minimum=1)
    tasks = LocalTasks(workers=workers, servers=servers)
    _local.append(tasks)
    return tasks, tasks.cluster


#: The tasks that this process has started. TensorFlow connects a process to one cluster only.
_local: list[LocalTasks] = []


def _connect(addresses: dict[str, list[str]], tasks: LocalTasks | None, timeout_seconds: float) -> None:
    connected = tf_servers.connected_cluster()
    wanted = {job: list(listed) for job, listed in addresses.items()}
    if connected == wanted:
        return
    if connected is not None:
        raise ConfigError(
            f"this process is connected to the cluster {connected}, and the strategy is for {wanted}. TensorFlow "
            "connects a process to one cluster; start a new one."
        )
    deadline = time.monotonic() + timeout_seconds
    waiting = {f"{job} {i} ({a})": a for job in ("ps", "worker") for i, a in enumerate(addresses[job])}
    while waiting:
        waiting = {name: address for name, address in waiting.items() if not tf_servers.listens(address)}
        if tasks is not None:
            tasks.require_running()
        if waiting and time.monotonic() > deadline:
            raise DeadlineError(
                f"{', '.join(waiting)} did not listen within {timeout_seconds:g} s. Look at what they printed; "
                "`tfdist doctor` checks ports and addresses."
            )
        if waiting:
            time.sleep(0.05)
    tf_servers.connect(addresses["chief"][0], addresses["worker"], addresses["ps"])


def _require_servers(addresses: Sequence[str]) -> None:
    for index, address in enumerate(addresses):
        if not tf_servers.listens(address):
            raise ServerLostError(
                f"parameter server {index} ({address}) is lost, and its variables with it. Start the job again; with "
                "keras.callbacks.BackupAndRestore, fit resumes from its last backup (tfdist run does both)."
            )
