"""Datasets of tensorflow-io as sources; they load under TensorFlow 2.16 alone: `make test-io`."""

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from tfdist import data

pytestmark = pytest.mark.quick

tfio = pytest.importorskip(
    "tensorflow_io", reason="tensorflow-io is not installed; `make test-io` has it", exc_type=ImportError
)
if tf.__version__.split(".")[:2] != ["2", "16"]:
    pytest.skip("tensorflow-io loads under TensorFlow 2.16 alone", allow_module_level=True)

COUNT = 101


def test_parquet(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = {"x": np.arange(COUNT, dtype="float32"), "label": np.arange(COUNT) * 2}
    pyarrow.parquet.write_table(pyarrow.table(table), tmp_path / "a.parquet")
    manifest = data.write(tfio.IODataset.from_parquet(str(tmp_path / "a.parquet")), tmp_path / "written")
    assert (manifest.examples, manifest.label) == (COUNT, "label")
    batches = list(data.read(tmp_path / "written", global_batch_size=COUNT))
    ((x, y, weight),) = batches
    assert sorted(y.numpy().tolist()) == (np.arange(COUNT) * 2).tolist()
    assert (x.numpy() * 2 == y.numpy()).all()
    assert weight.numpy().all()


def test_hdf5(tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(COUNT * 3, dtype="float64").reshape(COUNT, 3)
        file["label"] = np.arange(COUNT)
    columns = {name: tfio.IODataset.from_hdf5(str(tmp_path / "a.h5"), f"/{name}") for name in ("x", "label")}
    data.write(tf.data.Dataset.zip(columns), tmp_path / "written")
    assert data.open(tmp_path / "written")[7]["x"].tolist() == [21.0, 22.0, 23.0]
