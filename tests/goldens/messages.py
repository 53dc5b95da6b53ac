"""The messages that users meet most, one of each kind and room, as tfdist says them now.

They may be reworded in any release: the golden text shows what a change of words does to them. No other test compares
a sentence.
"""

import json
import os
import re
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.goldens.event_lines import write_events
from tests.simulated_steps import simulated
from tfdist import data, validation
from tfdist.cache import make
from tfdist.callbacks.noise_scale_math import Averages, Norms, verdict
from tfdist.checkpoint import Store
from tfdist.checkpoint.checkpoint_manifest import Manifest, plain_state
from tfdist.checkpoint.state_resizing import resharded
from tfdist.cluster import from_environment
from tfdist.cluster.mesh import Mesh
from tfdist.cluster.ports import free_ports
from tfdist.collectives.collective_selection import Offer, chosen
from tfdist.collectives.membership import sentence
from tfdist.compat.version_pairs import judge
from tfdist.data.order.class_shares import Weighted
from tfdist.data.sources import Options, open_source
from tfdist.doctor import machine_check
from tfdist.doctor.machine_check import Memory
from tfdist.errors import TfdistError
from tfdist.jobs.plan.host_plan import parse_hosts, places
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import VISIBLE
from tfdist.jobs.plan.worker_spec import visible_gpus as visible
from tfdist.monitor import faults
from tfdist.monitor.exporters import exporter as exporters
from tfdist.monitor.verdict.job_bound import judge as judged
from tfdist.monitor.verdict.job_bound import lines
from tfdist.monitor.verdict.step_parts import timeline
from tfdist.monitor.watch.event_log import read_events
from tfdist.monitor.watch.snapshot import sentence as told
from tfdist.optimizers import scale_learning_rate
from tfdist.parallel.layouts import Layouts
from tfdist.planner import schedules
from tfdist.planner.planner_link import Link
from tfdist.processes.worker_failure import Failure, Record, format_report
from tfdist.storage.directory import storage
from tfdist.tune import batch_size
from tfdist.verify import column, feature
from tfdist_horovod.build_tools import require_tools
from tfdist_horovod.edits import Edit
from tfdist_horovod.mpi_for_build import toolkit

_SLURM = {
    "SLURM_JOB_ID": "1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "7",
    "SLURM_STEP_NODELIST": "n[1-4]",
    "SLURM_STEP_TASKS_PER_NODE": "7",
}
_TRACE = "Traceback (most recent call last):\n  File ...\nValueError: boom\n"


def messages() -> str:
    """Return the golden text: what a message is about, and below it the kind of error and what it says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        return "\n".join(f"{about}\n{_indented(_said(act, folder))}" for about, act in MESSAGES.items())


def _said(act: Callable[[Path], Any], folder: Path) -> str:
    try:
        found = act(folder)
    except TfdistError as error:
        found = f"{type(error).__name__}: {error}"
    text = "\n".join(found) if isinstance(found, list | tuple) else str(found)
    text = text.replace(str(folder), "/folder").replace(os.getcwd(), "/here")
    return re.sub(r"\([\d.]+ (bytes|.iB) free there\)", "(... free there)", text)


def _indented(text: str) -> str:
    return "".join(f"  {line}\n" for line in text.splitlines())


def _file(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def _config(**changes: Any) -> Callable[[Path], Any]:
    return lambda folder: LaunchConfig(**{"target": "train.py", "workers": 2, **changes})


def _environment(**variables: str) -> Callable[[Path], Any]:
    return lambda folder: from_environment(variables)


def _rows(content: str) -> Callable[[Path], Any]:
    return lambda folder: list(open_source(_file(folder, "rows.csv", content)).blocks(0, None))


def _source(examples: Any, **options: Any) -> Callable[[Path], Any]:
    return lambda folder: list(open_source(examples, **options).blocks(0, None))


def _layouts(given: Any) -> Layouts:
    return Layouts(Mesh.parse("batch=2,model=2"), given, batch="batch")


def _written(folder: Path) -> Path:
    data.write({"x": np.arange(4)}, folder, num_shards=1)
    return folder


def _flipped(folder: Path) -> Any:
    path = _written(folder / "flipped") / "data-00000.tfrecord"
    content = bytearray(path.read_bytes())
    content[14] ^= 1
    path.write_bytes(content)
    return data.verify(path.parent).require_sound()


def _cut(folder: Path) -> Any:
    path = _written(folder / "cut") / "data-00000.tfrecord"
    path.write_bytes(path.read_bytes()[:-5])
    return data.open(path.parent)


def _without_manifest(folder: Path) -> Any:
    (_written(folder / "bare") / "manifest.json").unlink()
    return data.open(folder / "bare")


def _already_written(folder: Path) -> Any:
    return data.write({"x": np.arange(4)}, _written(folder / "full"))


def _events(folder: Path) -> list[str]:
    write_events(folder / "events", folder)
    return [told(event) for event in read_events(folder / "events")]


def _memory(_: Path) -> str:
    (finding,) = machine_check.judge_memory(Memory(total_bytes=64 << 30, available_bytes=1 << 29))
    return f"{finding.seen}\n{finding.cure}"


def _noise(_: Path) -> str:
    averages = Averages(0.0)
    averages.add(Norms(small_batch=1, big_batch=2, small=101.0, big=51.0))  # a noise of 100, a gradient of 1
    return verdict(averages, 50)


def _failure(worker: int, time: float, returncode: int, *, traceback: str = "") -> Failure:
    record = None
    if traceback:
        record = Record(clock=time, type="ValueError", message="boom", traceback=traceback, exit_code=1)
    return Failure(worker=worker, time=time, returncode=returncode, record=record)


def _report(*failures: Failure) -> Callable[[Path], str]:
    return lambda folder: format_report(failures, workers=2, started=3.0)


#: what a message is about -> what makes tfdist say it
MESSAGES: dict[str, Callable[[Path], Any]] = {
    "a number out of its bounds": lambda _: validation.integer("workers", 0, minimum=1, hint="Pass -n 1 or more."),
    "a number that is a text": lambda _: validation.integer("epochs", "3"),
    "a number that is not finite": lambda _: validation.number("seconds", float("nan"), minimum=0),
    "an empty text": lambda _: validation.text("name", " "),
    "a truth value that is a number": lambda _: validation.boolean("shuffle", 1),
    "a name that is nearly right": lambda _: validation.one_of("strategy", "mirored", ("mirrored", "ring")),
    "TF_CONFIG that is no JSON": _environment(TF_CONFIG="{'cluster': 1}"),
    "TF_CONFIG without a task": _environment(TF_CONFIG=json.dumps({"cluster": {"worker": ["a:1"]}})),
    "a variable that another one needs": _environment(HOROVOD_RANK="0"),
    "two workers at one address": _environment(TFDIST_WORKERS="a:1,a:1", TFDIST_WORKER_INDEX="0"),
    "Slurm's nodes and tasks that do not fit": _environment(**_SLURM),
    "Slurm's list of nodes that is cut": _environment(**{**_SLURM, "SLURM_STEP_NODELIST": "n[1-4"}),
    "a mesh that is none": lambda _: Mesh.parse("batch", name="--mesh"),
    "a mesh and processes that do not fit": lambda _: Mesh.parse("batch=2,model=2").require_size(2, 1, "-n 2"),
    "a host that does not resolve": lambda _: free_ports(1, "192.0.2.1"),
    "a cache folder that cannot be written": lambda folder: make(_file(folder, "file", "") / "cache", ("work",)),
    "a URL of an unknown store": lambda _: storage("nothing://x"),
    "a URL with one slash": lambda _: storage("s3:/bucket/x"),
    "a file that is missing": lambda folder: storage(folder).read("none"),
    "a folder that is a file": lambda folder: Store(_file(folder, "file", "")).save(1, {}, {}),
    "a source that is missing": _source("missing/*.csv"),
    "arrays of several lengths": _source({"a": np.zeros(3), "b": np.zeros(4)}),
    "a feature that is missing": _source([{"x": 1, "y": 2}, {"x": 1}]),
    "a value that does not fit": _source([{"x": 1}, {"x": 2.5}]),
    "a null in a table": _rows("x,y\n1,a\n,b\n"),
    "a table without rows": _rows("x,y\n"),
    "another delimiter": _rows("x;y\n1;a\n"),
    "a label that is none": _source({"x": [1]}, label="y"),
    "options of another kind of source": _source({"x": [1]}, options=Options(delimiter=";")),
    "more shards than examples": lambda folder: data.write({"x": [1]}, folder / "few", num_shards=2),
    "examples that are there already": _already_written,
    "a folder without a manifest": _without_manifest,
    "a shard that was cut": _cut,
    "a byte that was flipped": _flipped,
    "weights of no example": lambda _: Weighted(np.array([0, 1]), {3: 1.0}),
    "a checkpoint of a later version": lambda _: Manifest.from_bytes(b'{"format":"tfdist checkpoint","version":3}'),
    "state that is no JSON": lambda _: plain_state({"a": {"b": {3}}}),
    "an array that cannot be saved": lambda folder: Store(folder / "s").save(1, {"x": np.array(["a"])}, {}),
    "parts that another number of workers cannot have": lambda _: resharded("refuse", [np.zeros(2)], index=0, count=3),
    "workers that have gone": lambda _: sentence({1: "has ended", 2: "is silent"}, ["a:1", "b:1"]),
    "collectives that a worker lacks": lambda _: chosen(
        [Offer(asked="native", devices=("CPU:0",)), Offer(asked="native", devices=("CPU:0",), missing="no compiler")]
    ),
    "a layout that does not fit": lambda _: _layouts({".*": (None, "model")}).of("dense/kernel", (4, 5)),
    "a layout of no weight": lambda _: _layouts({"densse/.*": ("model",)}).require_all_matched(),
    "a schedule that is none": lambda _: schedules.named("gpip", stages=2, microbatches=4, chunks=1),
    "a link that is none": lambda _: Link.parse("fast"),
    "a rule that is none": lambda _: scale_learning_rate(0.1, 32, 64, "cubic"),
    "a batch that is none": lambda _: batch_size(32, environ={"TFDIST_BATCH_SIZE": "0"}),
    "a feature of verify that is none": lambda _: feature.select(["nothing"]),
    "a column of verify that is none": lambda _: column.select(["mirrored-4"]),
    "a fault that cannot be": lambda _: faults.parse('[{"kind": "slow"}]'),
    "an exporter that is none": lambda _: exporters.parse("tensor"),
    "hosts without room": lambda _: places(parse_hosts("a:1,b:1"), 3),
    "GPUs that are fewer": lambda _: visible((1, 2), {VISIBLE: "0"}),
    "evictions without room": _config(evict_stragglers=True, monitor=True),
    "a timeout that is none": _config(grace_seconds=-1),
    "sources of another release": lambda _: Edit(path="setup.py", old="a", new="b", why="").applied("aa"),
    "an MPI that is none": lambda folder: toolkit(folder / "mpi"),
    "tools that are missing": lambda _: require_tools({"compiler": None, "make": "/usr/bin/make"}),
    "versions out of range": lambda _: judge("2.99.0", "3.15.1").text,
    "a worker that has failed": _report(_failure(1, 5.0, 1, traceback=_TRACE), _failure(0, 7.0, -signal.SIGABRT)),
    "a worker that was killed": _report(_failure(1, 5.0, -signal.SIGKILL)),
    "the events of a job": _events,
    "a worker that is slow": lambda _: lines(judged(timeline(simulated(2, late=(1, "input", 10))))),
    "memory that is short": _memory,
    "a batch that pays": _noise,
}
