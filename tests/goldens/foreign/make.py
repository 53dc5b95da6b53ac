"""Writes the samples in this folder by the libraries whose formats they have; they were made once.

    python -m venv peers
    peers/bin/pip install webdataset==1.0.2 datasets==5.2.0 lmdb==3.0.0 'numpy<2.2' zstandard pillow catalogue
    peers/bin/pip install --no-deps mosaicml-streaming==0.13.0 litdata==0.2.76
    peers/bin/pip install tqdm boto3 lightning-utilities obstore
    peers/bin/python tests/goldens/foreign/make.py

The writers of MosaicML and LitData need neither torch nor the clients of object stores, so empty modules take their
places. Names of samples as arguments make these alone.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
COUNT = 7
_STORES = ("paramiko", "databricks", "boto3", "botocore", "oci", "azure", "google", "alipcs")


class _Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _Stubs(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    names = frozenset({*_STORES, "torch", "torchvision", "datasets", "transformers", "zstd", "brotli", "snappy"})

    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] in self.names:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        return _Stub(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def rows():
    return [
        {
            "id": i,
            "score": i / 4,
            "text": "größe" * (i % 3),
            "matrix": np.full((2, 3), i, "float32"),
            "list": np.arange(i % 5 + 1, dtype="int64"),
        }
        for i in range(COUNT)
    ]


def entries():
    """More than a page of small values, and two that have pages of their own."""
    found = {f"{number:05d}": f"value {number}" * (number % 4) for number in range(300)}
    return {**found, "00007": "x" * 9000, "99999": "y" * 4097}


def make_web() -> None:
    import webdataset

    with webdataset.TarWriter(str(HERE / "web.tar"), mtime=0) as sink:
        for row in rows():
            key = f"some.dir/{row['id']:04d}"
            sink.write({"__key__": key, "id": row["id"], "txt": row["text"], "npy": row["matrix"]})


def make_saved() -> None:
    import datasets

    table = {name: [np.asarray(row[name]).tolist() for row in rows()] for name in rows()[0]}
    datasets.Dataset.from_dict(table).save_to_disk(str(HERE / "saved"), num_shards=2)


def make_mds() -> None:
    sys.meta_path.insert(0, _Stubs())
    from streaming.base.format.mds.writer import MDSWriter

    columns = {"id": "int", "score": "float64", "text": "str", "matrix": "ndarray:float32:2,3", "list": "ndarray"}
    with MDSWriter(out=str(HERE / "mds"), columns=columns, size_limit=400) as out:
        for row in rows():
            out.write(row)


def make_lit() -> None:
    sys.meta_path.insert(0, _Stubs())
    import torch.distributed
    import torch.utils.data

    torch.distributed.is_available = lambda: False
    torch.utils.data.get_worker_info = lambda: None
    from litdata.streaming.item_loader import TokensLoader
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(str(HERE / "lit"), chunk_size=3)
    for number, row in enumerate(rows()):
        writer[number] = {**row, "inner": {"seen": number % 2 == 0, "raw": b"x" * number}}
    writer.done()
    writer.merge(1)
    tokens = BinaryWriter(str(HERE / "tokens"), chunk_size=10, item_loader=TokensLoader())
    for number, row in enumerate(rows()):
        tokens[number] = row["list"].astype("uint16")
    tokens.done()
    tokens.merge(1)


def make_lmdb() -> None:
    import lmdb

    with lmdb.open(str(HERE / "lmdb"), map_size=1 << 20, lock=False) as environment:
        for removed in (True, False):  # leaves free pages
            with environment.begin(write=True) as transaction:
                for key, value in entries().items():
                    transaction.put(key.encode(), value.encode())
                if removed:
                    transaction.delete(b"00003")
        with environment.begin(write=True) as transaction:
            transaction.delete(b"00003")


SAMPLES = {"web": make_web, "saved": make_saved, "mds": make_mds, "lit": make_lit, "lmdb": make_lmdb}

if __name__ == "__main__":
    for name in sys.argv[1:] or SAMPLES:
        SAMPLES[name]()
