"""A function as a job on a cluster of Ray, with the names that users of Ray Train know.

Plain actors in a placement group; no part of Ray Train is used or needed.

Source: P. Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", 2018.
"""

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.launch import notebook
from tfdist.launch.plan.demand import Demand
from tfdist.launch.plan.hosts import Remote
from tfdist.validation import shown

__all__ = ["FailureConfig", "Result", "RunConfig", "ScalingConfig", "Trainer"]

_RESOURCES = ("CPU", "GPU", "memory")


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """How many workers, and what each needs; the fields of `ray.train.ScalingConfig`, which may be given instead.

    Attributes:
        num_workers: how many.
        use_gpu: whether each has a GPU.
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
    """How often a job is started again.

    Attributes:
        max_failures: so many failures are survived.

    Example:
        >>> FailureConfig(max_failures=3).max_failures
        3
    """

    max_failures: int = 0


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Where a job leaves what it has done; fields of `ray.train.RunConfig`, which may be given instead.

    Attributes:
        name: of the folder of this job.
        storage_path: the folder in which that is made, on this machine; None: nothing is written.
        failure_config: how often it is started again.

    Example:
        >>> RunConfig(name="digits", failure_config=FailureConfig(max_failures=3)).name
        'digits'
    """

    name: str | None = None
    storage_path: str | None = None
    failure_config: FailureConfig | None = None


@dataclass(frozen=True, kw_only=True)
class Result:
    """What has come of a job.

    Attributes:
        metrics: what the chief's call of the function has returned.
        path: the folder of the job, with `result.json` and `events.jsonl`; None without a ``storage_path``.
    """

    metrics: Any
    path: str | None


@dataclass(kw_only=True)
class Trainer:
    """Calls a function in workers on a cluster of Ray, supervised as `tfdist run --engine ray` supervises a script.

    Each worker calls the function in this working directory, which every node has at the same path, and there
    `tfdist.strategies.from_environment()` finds its place. When workers fail, all are started again, up to
    `max_failures` times; `tfdist.callbacks.BackupAndRestore` goes on at the step that was reached. When `fit` returns
    or raises, actors and placement group are gone. The cluster is that to which this process is connected, else that
    of RAY_ADDRESS or of this machine; none is started. The function goes to the nodes by value, as a pickle, over
    Ray's own connections.

    Args:
        train_fn: called without arguments, or with ``train_loop_config`` where that is given.
        train_loop_config: its argument.
        scaling_config: how many workers, and what each needs; of this module or Ray's.
        run_config: name, storage and failures; of this module or Ray's.
        strategy: registered name for `tfdist.strategies.from_environment()`.
        wait_seconds: as `--wait-seconds` of `tfdist run`.
        options: further ones of `tfdist.launch.notebook`: `env`, `timeout_seconds`, `hang_seconds` and others.

    Example:
        >>> def train(config):
        ...     import keras
        ...     import tfdist
        ...     with tfdist.strategies.from_environment().scope():
        ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...         model.compile("sgd", "mse")
        ...     x, y = keras.random.normal((64, 4), seed=1), keras.random.normal((64, 1), seed=2)
        ...     return model.fit(x, y, batch_size=16, epochs=config["epochs"]).history
        >>> trainer = Trainer(
        ...     train_fn=train,
        ...     train_loop_config={"epochs": 3},
        ...     scaling_config=ScalingConfig(num_workers=4),
        ...     run_config=RunConfig(failure_config=FailureConfig(max_failures=2)),
        ... )
        >>> result = trainer.fit()      # doctest: +SKIP
    """

    train_fn: Callable[..., Any]
    train_loop_config: Mapping[str, Any] | None = None
    scaling_config: Any = field(default_factory=ScalingConfig)
    run_config: Any = field(default_factory=RunConfig)
    strategy: str | None = "multi-worker"
    wait_seconds: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def fit(self) -> Result:
        """Run the job to its end; return what the chief's call has returned.

        Raises:
            WorkerFailedError: a worker has failed more often than it may; the message names it and has its traceback.
            MissingDependencyError: Ray is not installed.
            ConfigError: a value that cannot be, or the cluster will never have room: what was asked, what there is.
            TfdistError: the cluster cannot be reached, or has no room in time.
            KeyboardInterrupt: it was interrupted; the workers have ended.
        """
        demand = demand_of(self.scaling_config, address=_address(), wait_seconds=self.wait_seconds)
        run = self.run_config
        failures = getattr(run, "failure_config", None)
        folder = None if not getattr(run, "storage_path", None) else Path(run.storage_path, run.name or "tfdist")
        options: dict[str, Any] = {"max_restarts": getattr(failures, "max_failures", 0), **self.options}
        if folder is not None:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise ConfigError(
                    f"storage_path is {shown(run.storage_path)}, where no folder {folder.name} can be made "
                    f"({error.strerror}). Name a folder that is writable."
                ) from error
            options.setdefault("event_file", str(folder / "events.jsonl"))
        metrics = notebook(
            self.train_fn,
            *(() if self.train_loop_config is None else (self.train_loop_config,)),
            strategy=self.strategy,
            workers=self.scaling_config.num_workers,
            remote=Remote(hosts=(), engine="ray", demand=demand),
            **options,
        )
        if folder is not None:
            text = json.dumps(metrics, default=str)
            (folder / "result.json").write_text(f"{text}\n", encoding="utf-8")
        return Result(metrics=metrics, path=None if folder is None else str(folder))


def demand_of(scaling: Any, *, address: str = "", wait_seconds: float | None = None) -> Demand:
    """Return what is asked of Ray for each worker.

    Args:
        scaling: a ScalingConfig, of this module or Ray's.
        address: of the cluster.
        wait_seconds: how long it may take.
    Raises:
        ConfigTypeError: it is none.
        ConfigError: it names resources that are not asked for here.

    Example:
        >>> demand_of(ScalingConfig(num_workers=2, use_gpu=True)).resources
        {'CPU': 1, 'GPU': 1}
    """
    if not hasattr(scaling, "num_workers") or not hasattr(scaling, "resources_per_worker"):
        raise ConfigTypeError(
            f"scaling_config is {shown(scaling)}; it must be a ScalingConfig: ScalingConfig(num_workers=4)"
        )
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
    """Return the cluster to which this process is connected, or is told to be; empty for that of this machine."""
    ray = sys.modules.get("ray")  # nobody is connected who has not imported it
    if ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    return os.environ.get("RAY_ADDRESS", "")
