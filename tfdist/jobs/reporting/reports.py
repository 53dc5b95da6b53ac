"""Reports of a Ray job's workers, written to the run's folder by the chief."""

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfdist import cluster, validation
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.jobs.reporting.run_folder import OWN, SIGN, Checkpoint, CheckpointConfig, Reports
from tfdist.variables import REPORTS

_next: int | None = None  # the index of this process's next report, once it is known


def here(*, checked: bool = True) -> Reports:
    """Return the folder to which this job reports; ``checked`` requires that all nodes share it."""
    said = REPORTS.read(os.environ)
    if not said:
        raise ConfigError(
            "there is nowhere to report to: a function reports that Trainer.fit() calls, of a trainer with "
            'run_config=RunConfig(storage_path="...", name="...").',
            name="run_config",
        )
    told = json.loads(said)
    folder = Path(told["folder"])
    try:
        run = (folder / SIGN).read_text(encoding="utf-8")
    except OSError:
        run = ""
    if checked and run != told["run"]:
        raise ConfigError(
            f"the folder {folder}, to which this job reports, is not on this node what it is on the machine that "
            "has started the job. Let storage_path be a folder that all of them share.",
            name="storage_path",
            path=folder,
        )
    return Reports(folder, CheckpointConfig(**told["kept"]))


def report(metrics: Mapping[str, Any], checkpoint: Any = None) -> None:
    """Report metrics, and perhaps a checkpoint, from a function that `Trainer.fit` calls, like `ray.train.report`.

    Every worker may call it; only the chief's reports count, and no worker waits. When it returns, the report and the
    checkpoint are on disk in the folder of the run, even if the job fails later. The folder of the checkpoint is
    copied.

    Args:
        metrics: the metrics by name: numbers, texts, bools, None, arrays and tensors, or lists and dicts of them.
        checkpoint: the folder of a checkpoint on the chief: a path, a `Checkpoint`, or Ray's; None for none.
    Raises:
        ConfigError: there is no folder for reports (``storage_path``), or this node has a different one; a name is
            reserved; or a worker that is not the chief has a checkpoint, which would not be kept.
        ConfigTypeError: the metrics or the checkpoint have another type.
        StorageError: the report cannot be written.

    Example:
        >>> def train(config):
        ...     for epoch in range(config["epochs"]):
        ...         report({"epoch": epoch, "loss": 1 / (epoch + 1)})
    """
    plain = plain_metrics(metrics)
    source = None if checkpoint is None else _folder_of(checkpoint)
    own = cluster.from_environment()
    if not own.is_chief:
        if source is not None:
            raise ConfigError(
                f"worker {own.worker_index} reports a checkpoint, and the chief's is kept alone: pass None on the "
                "others. A model whose weights lie in parts is whole after model.save() on all workers.",
                name="checkpoint",
                workers=(own.worker_index,),
            )
        return
    write(plain, source)


def write(metrics: dict[str, Any], source: Path | None, *, move: bool = False) -> None:
    global _next
    reports = here()
    if source is not None and reports.folder.resolve().is_relative_to(source.resolve()):
        raise ConfigError(
            f"the checkpoint {source} contains the folder to which it is reported, {reports.folder}.",
            name="checkpoint",
            path=source,
        )
    _next = reports.add(metrics, source, at=_next, move=move) + 1


def place() -> int:
    global _next
    if _next is None:
        _next = len(here().rows())  # only this process reports
    return _next


def resume_at(number: int) -> None:
    global _next
    _next = number


def get_checkpoint() -> Checkpoint | None:
    """Return the last checkpoint that this run has reported, also before a failure, like `ray.train.get_checkpoint`.

    Returns:
        The checkpoint; None if there is none yet.
    Raises:
        ConfigError: see `report`.

    Example:
        >>> def train(config):
        ...     last = get_checkpoint()
        ...     return None if last is None else last.path
    """
    found = here().checkpoints()
    return found[-1][0] if found else None


def plain_metrics(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, Mapping):
        raise validation.mismatch("metrics", metrics, "a mapping of names to values.", kind=ConfigTypeError)
    found = _plain("metrics", metrics)
    for name in OWN:
        if name in found:
            raise ConfigError(
                f"metrics has {name!r}, which is the name of what each report is given. Use another.",
                name="metrics",
                received=name,
            )
    return dict(found)


def _plain(where: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | str) or type(value) in (int, float):
        return value
    if isinstance(value, Mapping):
        for name in value:
            validation.text(f"a name in {where}", name)
        return {str(name): _plain(f"{where}[{name!r}]", one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(f"{where}[{number}]", one) for number, one in enumerate(value)]
    with contextlib.suppress(Exception):  # classes may refuse in their own ways
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            return array.tolist()
        if array.dtype.kind == "V":  # bfloat16 and the like
            return array.astype(np.float64).tolist()
    raise ConfigTypeError(
        f"{where} is {validation.shown(value)} ({type(value).__name__}); it must be a number, a text, a bool, None, or "
        "an array, a list or a dict of them.",
        name=where,
        received=validation.shown(value),
    )


def _folder_of(checkpoint: Any) -> Path:
    path = getattr(checkpoint, "path", checkpoint)
    kind = getattr(getattr(checkpoint, "filesystem", None), "type_name", "local")
    if kind != "local" or not isinstance(path, str | os.PathLike):
        required = 'a folder of this node: a path, or Checkpoint.from_directory("...").'
        raise validation.mismatch("checkpoint", checkpoint, required, kind=ConfigTypeError)
    if not os.path.isdir(path):
        raise ConfigError(f"checkpoint is {os.fspath(path)!r}, which is not a folder.", name="checkpoint", path=path)
    return Path(path)
