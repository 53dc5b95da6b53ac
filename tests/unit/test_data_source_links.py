"""HDF5 files whose datasets are elsewhere, or that the installed HDF5 cannot read although they are whole."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from tests.refusals import refused
from tfdist.data.format.schema import Feature
from tfdist.data.sources import open_source
from tfdist.errors import ConfigError, CorruptDataError, MissingDependencyError


def column(source: Any, name: str) -> list[Any]:
    return [value for block in source.blocks(0, None) for value in block[name].tolist()]


def test_links_of_hdf5_that_lead_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    for target, told in {
        h5py.SoftLink("/nothing"): "/nothing",
        h5py.ExternalLink("b.h5", "/y"): "b.h5:/y",
    }.items():
        with h5py.File(path, "w") as file:
            file["x"], file["z"], file["y"] = np.arange(3), h5py.SoftLink("/x"), target
        for schema in (None, {"y": Feature("int64")}):
            with refused(ConfigError, name="y", received=told, path=path):
                open_source(path, schema=schema)
        assert column(open_source(path, schema={"z": Feature("int64")}), "z") == [0, 1, 2]
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["y"] = np.arange(3)
    assert column(open_source(path), "y") == [0, 1, 2]


def test_virtual_datasets_of_hdf5_with_a_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "all.h5"
    layout = h5py.VirtualLayout((4,), "int64")
    layout[:2] = h5py.VirtualSource(".", "own", (2,))
    layout[2:] = h5py.VirtualSource("other.h5", "part", (2,))
    with h5py.File(path, "w") as file:
        file["own"] = [1, 2]
        file.create_group("whole").create_virtual_dataset("x", layout)
    for content in (None, "else", "part"):
        if content is not None:
            with h5py.File(tmp_path / "other.h5", "w") as file:
                file[content] = [3, 4]
        if content != "part":  # HDF5 itself returns zeros for both
            with refused(ConfigError, name="x", received="other.h5"):
                open_source(f"{path}:/whole")
    source = open_source(f"{path}:/whole")
    assert column(source, "x") == [1, 2, 3, 4]
    (tmp_path / "other.h5").unlink()
    with refused(ConfigError, name="x", received="other.h5"):
        column(source, "x")


def test_chunks_that_one_version_of_hdf5_cannot_read(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    images = {"dark": np.arange(100, dtype=np.uint8), "full": np.arange(256, dtype=np.uint8)}
    with h5py.File(path, "w") as file:
        for name, image in images.items():
            file.create_group(name).create_dataset("x", data=image, chunks=image.shape, scaleoffset=0)
    assert column(open_source(f"{path}:/dark"), "x") == images["dark"].tolist()
    if (1, 14, 4) <= h5py.version.hdf5_version_tuple < (2, 0, 0):
        with refused(MissingDependencyError, name="h5py", path=path):
            column(open_source(f"{path}:/full"), "x")
    else:
        assert column(open_source(f"{path}:/full"), "x") == images["full"].tolist()


def test_a_damaged_chunk_of_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        chunk = file.create_dataset("x", data=np.arange(100), chunks=(100,), fletcher32=True).id.get_chunk_info(0)
    with path.open("r+b") as file:
        file.seek(chunk.byte_offset)
        file.write(b"\xff")
    with refused(CorruptDataError, path=path):
        column(open_source(path), "x")
