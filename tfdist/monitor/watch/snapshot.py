"""The state of a job at one moment, as values and as JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    worker: int
    pid: int = 0  # 0 before the first report
    activity: str = ""
    step: int = 0  # ended steps since its start
    steps_per_second: float | None = None  # between two looks, or of the last step; None when none has ended
    loss: float | None = None  # of its examples in the last recorded step, or None
    gradient_norm: float | None = None  # the last measured one of its part; infinite where no number, or None
    parts: Mapping[str, float]  # mean seconds of each part of a step; empty without a record
    hidden: float = 0.0  # seconds of communication during the backward pass
    memory: int | None = None  # resident bytes of the process; None when it is gone
    cpu: float | None = None  # processors that it keeps busy, or None
    saved: int | None = None  # steps in its newest backup, or None
    resumed: int = 0  # steps in the backup that it started from; 0 without one
    resources: Mapping[str, float] = field(default_factory=dict)  # other metrics of the machine, without ``tfdist_``

    @property
    def used(self) -> dict[str, float]:
        """The resources of the machine that the process uses, by the name of the metric."""
        known = {"resident_memory_bytes": self.memory, "busy_processors": self.cpu, **self.resources}
        return {name: float(value) for name, value in known.items() if value is not None}

    @property
    def cells(self) -> dict[str, str]:
        total = sum(self.parts.values())
        return {
            "worker": str(self.worker),
            "does": self.activity,
            "step": str(self.step),
            "steps/s": "-" if self.steps_per_second is None else f"{self.steps_per_second:.1f}",
            "loss": "-" if self.loss is None else f"{self.loss:.4g}",
            "memory": "-" if self.memory is None else f"{self.memory / (1 << 20):.0f} MiB",
            "CPU": "-" if self.cpu is None else f"{self.cpu:.2f}",
            "step ms": f"{1e3 * total:.1f}" if total else "-",
        }


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    job: str
    start: int  # how often its workers were started again
    time: float  # seconds since 1970
    is_running: bool
    workers: tuple[WorkerView, ...]
    verdict: tuple[str, ...] = ()  # in five lines; empty without a record
    bound: str = ""  # what the job is bound by, a word; empty without a record
    model_flops_per_second: float | None = None  # of the whole job, or None
    model_flops_utilization: float | None = None  # the part of its devices' peak, or None
    events: tuple[Mapping[str, Any], ...] = ()  # the newest last, as the event file has them

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot for JSON; a loss or norm that is not finite is null, and a text has the loss anyway."""
        made = asdict(self)
        for one, view in zip(made["workers"], self.workers, strict=True):
            one["loss_text"] = view.cells["loss"]
            one |= {name: None for name in ("loss", "gradient_norm") if not math.isfinite(one[name] or 0.0)}
            one["gpus"] = gpus(one["resources"])
        made["events"] = [{**event, "sentence": sentence(event)} for event in self.events]
        return made


def gpus(resources: Mapping[str, float]) -> str:
    count = int(resources.get("gpus", 0))
    if not count:
        return ""
    found = ["1 GPU" if count == 1 else f"{count} GPUs", f"{resources['gpu_memory_bytes'] / (1 << 20):.0f} MiB"]
    if (ratio := resources.get("gpu_kernel_resident_ratio")) is not None:
        found.append(f"a kernel resident for {ratio:.0%} of the time")
    if (watts := resources.get("gpu_power_watts")) is not None:
        found.append(f"{watts:.0f} W")
    return ", ".join(
        [*found, *(f"slowed by {why}" for why in ("power", "heat") if resources.get(f"gpu_slowed_by_{why}"))]
    )


def sentence(event: Mapping[str, Any]) -> str:
    kind = event.get("event")
    if kind == "failed":
        who = event.get("task") or ("the workers" if event.get("worker") is None else f"worker {event['worker']}")
        text = str(event.get("text", ""))
        return text if text.startswith(who) else f"{who} failed: {text}"
    if kind == "stepping":
        lost = f", {event['lost']} steps repeated" if event.get("lost") else ""
        after = f" {event['seconds']:.1f} s later" if event.get("seconds") else ""
        return f"all {event.get('workers')} step{after}{lost}"
    if kind == "verdict":
        who = "" if event.get("worker") is None else f": worker {event['worker']}, {event.get('part')}"
        return f"bound by {event.get('bound')}{who}"
    if kind == "stacks":
        return f"stacks were taken: {event.get('text', '')}"
    if kind == "warning":
        return f"warning: {event.get('text', '')}"
    if kind == "alert":
        return f"alert: {event.get('text', event.get('alert'))}"
    if kind == "model":
        return f"the model needs {float(event.get('flops_per_step', 0)) / 1e9:.4g} GFLOP for a step"
    if kind == "straggler":
        return str(event.get("text", "a worker stays slow"))
    if kind == "ended":
        return f"ended with code {event.get('exit_code')} after {event.get('restarts')} restarts"
    if kind == "started":
        return f"{event.get('workers')} started"
    if kind == "halted":
        return f"all stopped before the same step ({event.get('purpose')}); {event.get('workers')} continue"
    return str(kind)


def newest(events: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    return events[-8:]
