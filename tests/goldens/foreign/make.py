"""Writes the samples in this folder by the libraries whose formats they have; they were made once.

    python -m venv peers
    peers/bin/pip install webdataset==1.0.2 datasets==5.2.0 'numpy<2.2' zstandard pillow catalogue
    peers/bin/pip install --no-deps mosaicml-streaming==0.13.0
    peers/bin/python tests/goldens/foreign/make.py

The writer of MosaicML needs neither torch nor the clients of object stores, so empty modules take their places.
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


def make() -> None:
    import webdataset

    with webdataset.TarWriter(str(HERE / "web.tar"), mtime=0) as sink:
        for row in rows():
            key = f"some.dir/{row['id']:04d}"
            sink.write({"__key__": key, "id": row["id"], "txt": row["text"], "npy": row["matrix"]})
    import datasets

    table = {name: [np.asarray(row[name]).tolist() for row in rows()] for name in rows()[0]}
    datasets.Dataset.from_dict(table).save_to_disk(str(HERE / "saved"), num_shards=2)
    sys.meta_path.insert(0, _Stubs())
    from streaming.base.format.mds.writer import MDSWriter

    columns = {"id": "int", "score": "float64", "text": "str", "matrix": "ndarray:float32:2,3", "list": "ndarray"}
    with MDSWriter(out=str(HERE / "mds"), columns=columns, size_limit=400) as out:
        for row in rows():
            out.write(row)


if __name__ == "__main__":
    make()
