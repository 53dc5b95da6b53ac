"""The contents of a directory, and the commands that show, verify and repair it."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tfdist
from tests.corruption import LAYOUTS, flip, write
from tests.refusals import absent, refused
from tfdist.cli.main import main
from tfdist.data.format.schema import Feature, Schema
from tfdist.errors import ConfigError, CorruptDataError


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["data", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, done.output


@pytest.mark.parametrize("layout", LAYOUTS)
def test_counts_add_up(tmp_path: Path, layout: str) -> None:
    manifest = write(tmp_path, layout, count=100, num_shards=3)
    found = tfdist.data.info(tmp_path)
    assert (found.layout, found.examples, found.revision, found.label) == (layout, 100, 1, "label")
    assert sum(bar.examples for bar in found.sizes) == 100
    assert found.sizes[0].start == min(shard.smallest for shard in manifest.shards)
    assert found.sizes[-1].stop == max(shard.largest for shard in manifest.shards)
    assert sum(shard["examples"] for shard in found.shards) == 100
    assert found.bytes == sum(path.stat().st_size for path in tmp_path.glob("*.tfrecord"))
    assert found.index_bytes == sum(path.stat().st_size for path in tmp_path.glob("*.index"))
    assert 1 <= found.balance < 1.2
    assert found.labels == {str(label): 1 for label in range(100)}
    assert json.loads(json.dumps(found.to_json()))["examples"] == 100


def test_labels_have_their_names(tmp_path: Path) -> None:
    schema = Schema({"x": Feature("float32"), "label": Feature("uint8", names=("cat", "dog"))})
    labels = np.array([0, 1, 1, 2], np.uint8)
    tfdist.data.write({"x": np.zeros(4, np.float32), "label": labels}, tmp_path, schema=schema)
    assert tfdist.data.info(tmp_path).labels == {"cat": 1, "dog": 2, "2": 1}


def test_what_has_no_classes(tmp_path: Path) -> None:
    tfdist.data.write({"x": np.zeros((4, 2), np.float32)}, tmp_path / "none")
    assert tfdist.data.info(tmp_path / "none").labels is None
    tfdist.data.write({"x": np.zeros(4), "label": np.arange(4.0)}, tmp_path / "numbers")
    assert tfdist.data.info(tmp_path / "numbers").labels is None


def test_a_picture(tmp_path: Path) -> None:
    write(tmp_path / "data", "extent")
    code, _ = run("info", tmp_path / "data", "--plot", tmp_path / "info.png")
    assert code == 0
    assert (tmp_path / "info.png").read_bytes().startswith(b"\x89PNG")
    with refused(ConfigError, path=tmp_path / "info.nothing", mentions=[".png"]):
        tfdist.data.info(tmp_path / "data").plot(tmp_path / "info.nothing")


def test_info_prints_a_table_and_bars(tmp_path: Path) -> None:
    write(tmp_path, "extent", count=100)
    code, output = run("info", tmp_path)
    assert code == 0
    for word in ("100 examples", "2 shards", "layout extent", "image", "string", "█", "classes with fewer"):
        assert word in output
    code, output = run("info", tmp_path, "--json")
    assert code == 0
    assert json.loads(output)["labels"]["99"] == 1


def test_info_refuses_what_is_corrupt(tmp_path: Path) -> None:
    write(tmp_path, "fixed")
    (tmp_path / "data-00000.tfrecord").write_bytes(b"")
    with refused(CorruptDataError, path="data-00000.tfrecord", received=0, mentions=["tfdist data repair"]):
        tfdist.data.info(tmp_path)
    code, output = run("info", tmp_path)
    assert code == 1
    assert "data-00000.tfrecord has 0 bytes" in output


@pytest.mark.parametrize("layout", LAYOUTS)
def test_verify_and_repair_by_command(tmp_path: Path, layout: str) -> None:
    write(tmp_path, layout)
    assert run("verify", tmp_path)[0] == 0
    flip(tmp_path / "data-00000.tfrecord", 14)
    code, output = run("verify", tmp_path)
    assert code == 1
    assert "data-00000.tfrecord, byte 0, example 0: " in output
    assert "9 of 10 examples" in output
    assert f"tfdist data repair {tmp_path}" in output
    code, output = run("verify", "--json", "--quick", tmp_path)
    assert code == 1
    found = json.loads(output)
    assert [place["example"] for place in found["places"]] == [0]
    code, output = run("repair", tmp_path)
    assert code == 0
    assert "revision 2; 1 example lost" in output
    code, output = run("verify", tmp_path)
    assert code == 0
    assert "9 examples in 2 shards" in output
    code, output = run("repair", tmp_path, "--json")
    assert (code, json.loads(output)["has_changed"]) == (0, False)


def test_very_many_places_are_not_all_printed(tmp_path: Path) -> None:
    write(tmp_path, "fixed", count=100, num_shards=1)
    path = tmp_path / "data-00000.tfrecord"
    path.write_bytes(bytes(path.stat().st_size))
    code, output = run("verify", tmp_path)
    assert code == 1
    assert "and 50 more; --json lists all" in output
    assert len(json.loads(run("verify", "--json", tmp_path)[1])["places"]) == 100


def test_index_by_command(tmp_path: Path) -> None:
    write(tmp_path, "extent")
    (tmp_path / "manifest.json").unlink()
    code, output = run("index", tmp_path)
    assert code == 0
    assert not absent(output, "10 examples in 2 shards", "layout extent", "image string[], label int64[]")
    assert run("index", tmp_path)[0] == 2
    schema = tmp_path / "schema.json"
    schema.write_text(
        json.dumps({"image": {"dtype": "string", "shape": [None]}, "label": {"dtype": "int64", "shape": []}})
    )
    code, output = run("index", tmp_path, "--overwrite", "--schema", schema)
    assert "layout generic" in output


def test_requests_that_make_no_sense(tmp_path: Path) -> None:
    for command in ("verify", "info", "repair", "index"):
        code, output = run(command, tmp_path / "nothing")
        assert code == 2, (command, output)
        assert "Error: " in output


def test_help_teaches() -> None:
    code, output = run("--help")
    assert code == 0
    assert [name for name in ("write", "index", "info", "verify", "repair") if name not in output] == []
    for command, words in {
        "verify": ("--quick", "--json", "Exit code", "s3://"),
        "repair": ("--rebuild-manifest", "--drop-missing", "revision", "killed"),
        "info": ("--plot", "--json", "balance"),
        "index": ("--label", "--schema", "as they are", "GZIP"),
    }.items():
        output = run(command, "--help")[1]
        assert [word for word in words if word not in output] == []


def test_the_commands_load_no_tensorflow(tmp_path: Path) -> None:
    write(tmp_path, "generic")
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom tfdist.cli.main import main\n"
        f"for name in ('info', 'verify', 'repair'): assert CliRunner().invoke(main, ['data', name, {str(tmp_path)!r}])"
        ".exit_code == 0\nassert 'tensorflow' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
