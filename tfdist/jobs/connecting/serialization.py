"""The serialization of requests and processes as JSON for other hosts."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tfdist import variables
from tfdist.cluster.cluster_values import TaskId
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import WorkerSpec

KEY_IS_DERIVED = "derived"  # in place of the workers' key, for a host that has the key from which it follows

# variables that belong to one host, or to the process that reads them
_OF_A_HOST = (
    *(variables.HOST_ID.name, variables.HOST_NAME.name, variables.RENDEZVOUS.name, variables.JOIN_SECONDS.name),
    *(variables.JOB_KEY.name, variables.JOB_ID.name, variables.CACHE_DIR.name, variables.CALL_FOLDER.name),
)
_PREFIXES = ("TF_", variables.PREFIX, "KERAS_", "OMP_", "XLA_", "HOROVOD_", "CUDA_", "MKL_", "KMP_", "NCCL_", "PYTHON")


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """A host's report about itself: `versions` of the packages that workers use, and `memory` that outlives workers."""

    python: str
    pid: int
    directory: str
    memory: str
    versions: Mapping[str, str]
    is_loopback: bool


def passed_on(environ: Mapping[str, str], more: tuple[str, ...]) -> dict[str, str]:
    """Return the variables that processes on other hosts get: those of frameworks, and those that the user names.

    Other variables are not sent: paths and secrets of one machine mean nothing, or reveal too much, on another.

    Example:
        >>> passed_on({"TF_NUM_INTEROP_THREADS": "1", "AWS_SECRET_ACCESS_KEY": "s", "A": "1"}, ("A",))
        {'TF_NUM_INTEROP_THREADS': '1', 'A': '1'}
    """
    own = without_those_of_a_host(environ)
    return {
        name: value for name, value in environ.items() if name in more or (name.startswith(_PREFIXES) and name in own)
    }


def without_those_of_a_host(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the tfdist variables of this host or process."""
    return {name: value for name, value in environ.items() if name not in _OF_A_HOST}


def config_to_json(config: LaunchConfig) -> dict[str, Any]:
    left_out = ("remote", "event_file")
    return {field.name: getattr(config, field.name) for field in fields(config) if field.name not in left_out}


def config_from_json(values: Mapping[str, Any]) -> LaunchConfig:
    return LaunchConfig(**{**values, **{name: tuple(values[name]) for name in ("arguments", "exporters")}})


def spec_to_json(spec: WorkerSpec) -> dict[str, Any]:
    return {
        **{field.name: getattr(spec, field.name) for field in fields(spec)},
        "task": [spec.task.type, spec.task.index],
        "environment": dict(spec.environment),
        "error_file": str(spec.error_file),
        "piped": sorted(spec.piped),
    }


def spec_from_json(values: Mapping[str, Any]) -> WorkerSpec:
    kind, index = values["task"]
    return WorkerSpec(
        **{
            **values,
            "task": TaskId(type=kind, index=index),
            "argv": tuple(values["argv"]),
            "removed": tuple(values["removed"]),
            "peers": tuple(values["peers"]),
            "gpus": None if values["gpus"] is None else tuple(values["gpus"]),
            "error_file": Path(values["error_file"]),
            "piped": frozenset(values["piped"]),
        }
    )
