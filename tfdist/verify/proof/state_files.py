"""Files of a script's run: the values after each step, and facts about the run.

Each value is a numpy file named by its content, so equal values share one. Nothing is a pickle. Loads no TensorFlow.

    arrays/DIGEST.npy               a value
    KIND/worker-W/step-0003.json    of a kind of run and a worker: the names of values, and their digests
    KIND/worker-W/run.json          a `Run`
    input/worker-W/                 what the replicas of a worker were given, see `proof.fit_input`
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist.storage.files import write_whole

#: the kinds of runs
STRATEGY, ONE_DEVICE = "strategy", "one-device"
#: on one device, with the examples of each batch in the reverse order: what changes then is rounding
REVERSED = "one-device-reversed"


@dataclass(kw_only=True)
class Run:
    """Facts about a run on one worker.

    Attributes:
        loop: "fit", or "loop" if the script has its own.
        replicas: the number of replicas over all workers, as the script sees it.
        part: this worker's part of a batch; workers on the same place of a mesh share one.
        is_own: whether each worker reads data of its own.
        epochs: the epoch, from 0, of each execution of steps.
        batches: the number of batches of each epoch.
        left_out: the parts of the script that were not compared, or done in another way.
        random: the user's layers that draw random numbers.
        is_short: whether a layer computes in floats of 16 bits.
        normalising: the layers with statistics of each replica.
        seen: for each step of a loop, digests of its data; empty if none was seen.
        others: the difference of each step's batch from one device: "", "rows" or "examples".
        details: for steps with other rows, the number of rows of each input.
        whole: the names of the inputs that every replica has whole.
        said: the warnings of tfdist while the steps ran.
    """

    loop: str = "fit"
    replicas: int = 1
    workers: int = 1
    part: int = 0
    is_own: bool = False
    epochs: list[int] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)
    is_done: bool = False
    left_out: list[str] = field(default_factory=list)
    random: list[str] = field(default_factory=list)
    is_short: bool = False
    normalising: list[str] = field(default_factory=list)
    seen: list[list[str]] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    details: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def leave_out(self, sentence: str) -> None:
        if sentence not in self.left_out:
            self.left_out.append(sentence)


@dataclass(frozen=True, kw_only=True)
class Step:
    """The values after a step, or an execution of several; step 0 is before the first.

    ``values`` has an array for each replica of the worker, or one if all are equal.
    """

    number: int
    values: Mapping[str, Sequence[NDArray[Any]]]


class StateFiles:
    """The files of a worker in a run."""

    def __init__(self, folder: str | os.PathLike[str], kind: str, worker: int) -> None:
        self._arrays = Path(folder, "arrays")
        self._folder = Path(folder, kind, f"worker-{worker}")
        self._arrays.mkdir(parents=True, exist_ok=True)
        self._folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def of_all(cls, folder: str | os.PathLike[str], kind: str) -> "list[StateFiles]":
        """Return the files of every worker that has written some, by its number."""
        found = sorted(int(path.name.rpartition("-")[2]) for path in Path(folder, kind).glob("worker-*"))
        return [cls(folder, kind, worker) for worker in found]

    def write(self, step: Step) -> None:
        digests = {name: [self._put(one) for one in _distinct(values)] for name, values in step.values.items()}
        write_whole(self._folder / f"step-{step.number:06}.json", json.dumps(digests))

    def steps(self) -> list[Step]:
        return [self._read(path) for path in sorted(self._folder.glob("step-*.json"))]

    def clear(self) -> None:
        for path in self._folder.glob("step-*.json"):
            path.unlink()

    def end(self, run: Run) -> None:
        write_whole(self._folder / "run.json", json.dumps(asdict(run)))

    def run(self) -> Run | None:
        path = self._folder / "run.json"
        return Run(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    def _read(self, path: Path) -> Step:
        digests = json.loads(path.read_text(encoding="utf-8"))
        values = {
            name: [np.load(self._arrays / f"{digest}.npy", allow_pickle=False) for digest in of_replicas]
            for name, of_replicas in digests.items()
        }
        return Step(number=int(path.stem.rpartition("-")[2]), values=values)

    def _put(self, value: NDArray[Any]) -> str:
        digest = digest_of(value)
        path = self._arrays / f"{digest}.npy"
        if not path.exists():
            temporary = self._arrays / f"{digest}.{os.getpid()}"
            with open(temporary, "wb") as file:
                np.save(file, value, allow_pickle=False)
            temporary.replace(path)
        return digest


def digest_of(value: NDArray[Any]) -> str:
    """Return a digest of an array's dtype, shape and bytes."""
    value = np.ascontiguousarray(value)
    found = hashlib.sha256(f"{value.dtype.str}{value.shape}".encode())
    found.update(value.tobytes() if value.dtype.kind in "US" else value.data if value.size else b"")
    return found.hexdigest()


def storable(value: Any) -> NDArray[Any]:
    """Return a value as an array that NumPy stores without a pickle: floats that it does not know become float32."""
    array = np.asarray(value)
    if array.dtype.kind == "O":
        texts = [one if isinstance(one, bytes) else str(one).encode() for one in array.flat]
        return np.array(texts, "S").reshape(array.shape)
    return array if array.dtype.kind in "biufcUS" else array.astype(np.float32)


def _distinct(values: Sequence[Any]) -> list[NDArray[Any]]:
    """Return the values of all replicas; one if all are the same."""
    arrays = [storable(value) for value in values]
    same = all(digest_of(one) == digest_of(arrays[0]) for one in arrays[1:])
    return arrays[:1] if same else arrays
