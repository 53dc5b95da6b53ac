"""Turns of the peers: `python formats_peers.py webdataset|mosaicml JSON`, in an environment that has them.

MosaicML's reader of shards uses neither torch nor the clients of object stores, so empty modules take their places.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import json
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_BUFFER = 1000
_SEED = 7


class _Empty(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder of empty modules, which is asked last, so only for missing modules."""

    names = frozenset({"torch", "torchvision", "datasets", "transformers", "zstd", "brotli", "snappy"})
    names |= {"paramiko", "databricks", "boto3", "botocore", "oci", "azure", "google", "alipcs"}

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: Any) -> Any:
        return _Empty(spec.name)

    def exec_module(self, module: Any) -> None:
        module.__path__ = []


def webdataset(setup: dict[str, Any]) -> int:
    """Pictures with their labels in lists of a batch."""
    import webdataset as wds

    shards = sorted(map(str, Path(setup["data"]).glob("*.tar")))
    dataset = wds.WebDataset(shards, shardshuffle=len(shards), seed=_SEED).shuffle(_BUFFER)
    count = 0
    batch: list[tuple[bytes, int]] = []
    for sample in dataset:
        batch.append((sample["jpg"], int(sample["cls"])))
        if len(batch) == setup["batch"]:
            images, labels = map(list, zip(*batch, strict=True))
            count += len(images)
            np.array(labels)
            batch = []
    return count + len(batch)


def mosaicml(setup: dict[str, Any]) -> int:
    """Samples in a random order over all shards, in batches if these have a size."""
    sys.meta_path.append(_Missing())
    from streaming.base.format.mds.reader import MDSReader

    folder = Path(setup["data"])
    shards = json.loads((folder / "index.json").read_text(encoding="utf-8"))["shards"]
    readers = [MDSReader.from_json(str(folder), None, dict(shard)) for shard in shards]
    places = [(reader, number) for reader in readers for number in range(reader.samples)]
    order = np.random.default_rng(_SEED).permutation(len(places)).tolist()
    if not setup["batch"]:
        return sum(1 for place in order if places[place][0][places[place][1]])
    count = 0
    for begin in range(0, len(order), setup["batch"]):
        samples = [places[place][0][places[place][1]] for place in order[begin : begin + setup["batch"]]]
        count += len(_stacked(samples)["id"])
    return count


def _stacked(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Arrays and numbers as arrays, bytes as a list."""
    found: dict[str, Any] = {}
    for name, first in samples[0].items():
        values = [sample[name] for sample in samples]
        found[name] = values if isinstance(first, bytes) else np.stack(values)
    return found


def timed(side: Callable[[dict[str, Any]], int], setup: dict[str, Any]) -> tuple[float, float]:
    """Return the wall seconds and CPU seconds of the second pass."""
    whole = side(setup)
    began = time.perf_counter(), time.process_time()
    if side(setup) != whole or not whole:
        raise SystemExit(f"{side.__name__} read {whole} examples, and others in its second pass.")
    return time.perf_counter() - began[0], time.process_time() - began[1]


if __name__ == "__main__":
    given = json.loads(sys.argv[2])
    seconds = timed({"webdataset": webdataset, "mosaicml": mosaicml}[sys.argv[1]], given)
    Path(given["into"]).write_text(json.dumps(seconds), encoding="utf-8")
