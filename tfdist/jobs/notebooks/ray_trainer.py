"""The job of a function on a Ray cluster, with the names that users of Ray Train know.

It uses plain actors in a placement group, and no part of Ray Train.

Source: P. Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", 2018.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError, ConfigTypeError, MissingDependencyError
from tfdist.jobs.notebooks.notebook_job import notebook
from tfdist.jobs.plan.host_plan import Demand, Remote
from tfdist.jobs.reporting import run_folder
from tfdist.jobs.reporting.run_folder import Checkpoint, CheckpointConfig
from tfdist.validation import mismatch, shown

_RESOURCES = ("CPU", "GPU", "memory")


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """The number of workers and the needs of each; fields of `ray.train.ScalingConfig`, which may be given instead.

    Attributes:
        num_workers: the number of workers.
        use_gpu: whether each worker has a GPU.
        resources_per_worker: "CPU", "GPU" and "memory" (bytes) of each; by default a CPU, and with ``use_gpu`` a GPU.
        placement_strategy: PACK, SPREAD, STRICT_PACK or STRICT_SPREAD.

    Example:
        >>> ScalingConfig(num_workers=2, use_gpu=True).num_workers
        2
    """

    num_workers: int = 1
    use_gpu: bool = False
    resources_per_worker: Mapping[str, float] | None = None
    placement_strategy: str = "PACK"


@dataclass(frozen=True, kw_only=True)
class FailureConfig:
    """The number of times that a job is started again.

    Attributes:
        max_failures: the number of failures that a job survives.

    Example:
        >>> FailureConfig(max_failures=3).max_failures
        3
    """

    max_failures: int = 0


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The place of a job's results; fields of `ray.train.RunConfig`, which may be given instead.

    Attributes:
        name: the name of this job's folder. A job of the same name continues the reports there.
        storage_path: the parent of this folder; None: nothing is written, and nothing can be reported. For reports,
            all nodes must share it.
        failure_config: the number of times that the job is started again.
        checkpoint_config: the rule by which reported checkpoints are kept; None: all are kept.

    Example:
        >>> RunConfig(name="digits", failure_config=FailureConfig(max_failures=3)).name
        'digits'
    """

    name: str | None = None
    storage_path: str | None = None
    failure_config: FailureConfig | None = None
    checkpoint_config: CheckpointConfig | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a job; the fields of `ray.train.Result`.

    Attributes:
        metrics: the metrics of the last report; None if nothing was reported.
        checkpoint: the last checkpoint that was reported and is kept; None if there is none.
        history: all reports in order: their metrics, ``training_iteration`` from 1, ``timestamp``, and
            ``checkpoint_dir_name``, in ``path``.
        best_checkpoints: the checkpoints that are kept, in order, each with the metrics of its report.
        path: the folder of the job, with `result.json`, the checkpoints and `events.jsonl`; None without a
            ``storage_path``.
        return_value: the return value of the chief's call of the function.
    """

    metrics: dict[str, Any] | None
    checkpoint: Checkpoint | None
    history: list[dict[str, Any]]
    best_checkpoints: list[tuple[Checkpoint, dict[str, Any]]]
    path: str | None
    return_value: Any = None

    @classmethod
    def from_path(cls, path: str | os.PathLike[str]) -> "Result":
        """Return the reports of a job, even if it failed or still runs.

        Args:
            path: the folder of the job: ``storage_path/name``.
        Raises:
            ConfigError: there is no such folder.
            CorruptDataError: the folder does not contain reports.
        """
        folder = Path(path).expanduser()
        if not folder.is_dir():
            raise ConfigError(
                f"path is {os.fspath(path)!r}, which is not a folder; it must be storage_path/name.",
                name="path",
                path=path,
            )
        found = run_folder.Reports(folder)
        history, kept = found.rows(), found.checkpoints()
        return cls(
            metrics=run_folder.metrics_of(history[-1]) if history else None,
            checkpoint=kept[-1][0] if kept else None,
            history=history,
            best_checkpoints=kept,
            path=str(folder),
        )

    @property
    def metrics_dataframe(self) -> Any:
        """The history as a pandas DataFrame; pandas must be installed."""
        try:
            pandas = importlib.import_module("pandas")
        except ImportError as error:
            raise MissingDependencyError(
                "metrics_dataframe needs pandas, which is not installed: pip install pandas. Or use history."
            ) from error
        return pandas.json_normalize(self.history, sep="/")


@dataclass(kw_only=True)
class Trainer:
    """A trainer that calls a function in workers on a Ray cluster, supervised as by `tfdist run --engine ray`.

    Each worker calls the function in this working directory, which every node has at the same path, and there
    `tfdist.strategies.from_environment()` finds its place. When workers fail, all are started again, up to
    `max_failures` times, and `tfdist.callbacks.BackupAndRestore` resumes at the step that was reached. Reports of the
    function (`report`, `ReportCheckpointCallback`) are in the folder of the run at once, and stay there even if the job
    fails. When `fit` returns or raises, the actors and the placement group are gone. The cluster is the one to which
    this process is connected, else that of RAY_ADDRESS or of this machine; no cluster is started. The function goes to
    the nodes by value, as a pickle, over Ray's own connections.

    Args:
        train_fn: the function, called without arguments, or with ``train_loop_config`` if that is given.
        train_loop_config: the argument of the function.
        scaling_config: the number of workers and the needs of each; the class of this module or Ray's.
        run_config: the name, storage and failures of the run; the class of this module or Ray's.
        strategy: the registered name for `tfdist.strategies.from_environment()`.
        wait_seconds: the longest wait for room on the cluster, in seconds; see `--wait-seconds` of `tfdist run`.
        options: further options of `tfdist.jobs.notebook`: `env`, `timeout_seconds`, `hang_seconds` and others.

    Example:
        >>> def train(config):
        ...     import keras
        ...     import tfdist
        ...     with tfdist.strategies.from_environment().scope():
        ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...         model.compile("sgd", "mse")
        ...     x, y = keras.random.normal((64, 4), seed=1), keras.random.normal((64, 1), seed=2)
        ...     model.fit(x, y, batch_size=16, epochs=config["epochs"], callbacks=[ReportCheckpointCallback()])
        >>> trainer = Trainer(
        ...     train_fn=train,
        ...     train_loop_config={"epochs": 3},
        ...     scaling_config=ScalingConfig(num_workers=4),
        ...     run_config=RunConfig(
        ...         name="first", storage_path="runs", failure_config=FailureConfig(max_failures=2)
        ...     ),
        ... )
        >>> result = trainer.fit()      # doctest: +SKIP
        >>> result.metrics, result.checkpoint.path      # doctest: +SKIP
        ({'loss': 1.4713996648788452}, 'runs/first/checkpoint_000002')
    """

    train_fn: Callable[..., Any]
    train_loop_config: Mapping[str, Any] | None = None
    scaling_config: Any = field(default_factory=ScalingConfig)
    run_config: Any = field(default_factory=RunConfig)
    strategy: str | None = "multi-worker"
    wait_seconds: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def fit(self) -> Result:
        """Run the job to its end, and return its reports and the result of the chief's call.

        Raises:
            WorkerFailedError: a worker has failed too often; the message names it and has its traceback.
                `Result.from_path` returns the reports.
            MissingDependencyError: Ray is not installed.
            ConfigError: a value is not allowed; another running job reports to the same folder; or the cluster can
                never have room, and the message compares the request with the cluster.
            TfdistError: the cluster cannot be reached, or has no room in time.
            KeyboardInterrupt: the job was interrupted; the workers have ended.
        """
        demand = demand_of(self.scaling_config, address=_address(), wait_seconds=self.wait_seconds)
        failures = getattr(self.run_config, "failure_config", None)
        options: dict[str, Any] = {"max_restarts": getattr(failures, "max_failures", 0), **self.options}
        folder = _folder_of(self.run_config)
        with contextlib.ExitStack() as stack:
            if folder is not None:
                kept = _kept_of(self.run_config)
                variables = stack.enter_context(run_folder.running(folder, kept))
                options["env"] = {**(options.get("env") or {}), **variables}
                options.setdefault("event_file", str(folder / "events.jsonl"))
            returned = notebook(
                self.train_fn,
                *(() if self.train_loop_config is None else (self.train_loop_config,)),
                strategy=self.strategy,
                workers=self.scaling_config.num_workers,
                remote=Remote(hosts=(), launcher="ray", demand=demand),
                **options,
            )
        if folder is None:
            nothing: dict[str, Any] = {"metrics": None, "checkpoint": None, "history": [], "best_checkpoints": []}
            return Result(**nothing, path=None, return_value=returned)
        return replace(Result.from_path(folder), return_value=returned)


def _folder_of(run: Any) -> Path | None:
    """Create and return the folder of a run; None if nothing is to be written."""
    if not hasattr(run, "storage_path") or not hasattr(run, "name"):
        raise mismatch("run_config", run, "a RunConfig: RunConfig(storage_path=...)", kind=ConfigTypeError)
    for name in ("callbacks", "storage_filesystem"):
        if getattr(run, name, None):
            raise ConfigError(f"run_config has {name}, which is Ray Train's own and of no use here. Leave it out.")
    if not run.storage_path:
        return None
    if "://" in str(run.storage_path):
        raise ConfigError(
            f"storage_path is {shown(run.storage_path)}; it must be a folder. Mount the store, or report without it: "
            "tfdist.callbacks.BackupAndRestore takes URLs.",
            name="storage_path",
            received=shown(run.storage_path),
        )
    folder = Path(run.storage_path, run.name or "tfdist").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"storage_path is {shown(run.storage_path)}, where no folder {folder.name} can be made "
            f"({error.strerror}). Name a folder that is writable.",
            name="storage_path",
            received=shown(run.storage_path),
        ) from error
    return folder


def _kept_of(run: Any) -> CheckpointConfig:
    given = getattr(run, "checkpoint_config", None)
    if given is None or isinstance(given, CheckpointConfig):
        return given or CheckpointConfig()
    names = CheckpointConfig.__dataclass_fields__
    if not all(hasattr(given, name) for name in names):
        required = "a CheckpointConfig: CheckpointConfig(num_to_keep=2)"
        raise mismatch("checkpoint_config", given, required, kind=ConfigTypeError)
    return CheckpointConfig(**{name: getattr(given, name) for name in names})


def demand_of(scaling: Any, *, address: str = "", wait_seconds: float | None = None) -> Demand:
    if not hasattr(scaling, "num_workers") or not hasattr(scaling, "resources_per_worker"):
        required = "a ScalingConfig: ScalingConfig(num_workers=4)"
        raise mismatch("scaling_config", scaling, required, kind=ConfigTypeError)
    each = {"CPU": 1, "GPU": int(scaling.use_gpu), **(scaling.resources_per_worker or {})}
    unknown = sorted(each.keys() - set(_RESOURCES))
    if unknown:
        raise ConfigError(
            f"resources_per_worker has {', '.join(unknown)}; workers ask for {', '.join(_RESOURCES)}. Leave it out."
        )
    return Demand(
        cpus=each["CPU"],
        gpus=each["GPU"],
        memory=int(each.get("memory", 0)),
        packing=scaling.placement_strategy,
        address=address,
        wait_seconds=wait_seconds,
    )


def _address() -> str:
    """Return the address of the cluster to which this process is connected or configured; empty for this machine's."""
    ray = sys.modules.get("ray")  # without the module there is no connection
    if ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return os.environ.get("RAY_ADDRESS", "")
