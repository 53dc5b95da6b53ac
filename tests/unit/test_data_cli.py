"""`tfdist data write`: what it passes on, what it prints, and how it ends."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tfdist import data
from tfdist.cli.main import main

CSV = "x,label,name\n1.5,0,a\n2.5,1,b\n3.5,0,ü\n"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["data", "write", *map(str, arguments)])


def manifest(directory: Path) -> data.Manifest:
    return data.Manifest.from_bytes((directory / "manifest.json").read_bytes())


def test_files_become_a_directory(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    done = run(tmp_path / "a.csv", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith(f"{tmp_path}/out has 3 examples in 1 shard, ")
    written = manifest(tmp_path / "out")
    assert written.examples == 3
    assert list(written.schema) == ["label", "name", "x"]


def test_several_files_and_shards(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.csv").write_text(CSV)
    done = run(tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "out", "--shard-bytes", "1kB")
    assert done.exit_code == 0, done.output
    assert "has 6 examples" in done.stdout
    again = run(tmp_path / "out", tmp_path / "again", "--num-shards", 2, "--processes", 1)
    assert "has 6 examples in 2 shards" in again.stdout


def test_a_directory_that_holds_examples(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "b.csv").write_text("x\n1\n")
    assert run(tmp_path / "a.csv", tmp_path / "out").exit_code == 0
    refused = run(tmp_path / "b.csv", tmp_path / "out")
    assert refused.exit_code == 2
    assert "--overwrite" in refused.stderr
    assert "has 3 examples" in run(tmp_path / "b.csv", tmp_path / "out", "--keep").stdout
    assert "has 1 example in" in run(tmp_path / "b.csv", tmp_path / "out", "--overwrite").stdout


def test_a_schema_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    (tmp_path / "schema.json").write_text(json.dumps({"label": {"dtype": "uint8", "shape": []}}))
    done = run(tmp_path / "a.csv", tmp_path / "out", "--schema", tmp_path / "schema.json", "--label", "label")
    assert done.exit_code == 0, done.output
    assert {name: feature.dtype for name, feature in manifest(tmp_path / "out").schema.items()} == {"label": "uint8"}
    again = run(tmp_path / "a.csv", tmp_path / "again", "--schema", tmp_path / "out" / "manifest.json")
    assert again.exit_code == 0, again.output
    assert manifest(tmp_path / "again").schema.to_json() == manifest(tmp_path / "out").schema.to_json()


def test_rewriting_keeps_the_schema(tmp_path: Path) -> None:
    schema = data.Schema({"m": data.Feature("uint8", (2, 2)), "label": data.Feature("int64", names=("no", "yes"))})
    data.write([{"m": [[1, 2], [3, 255]], "label": 1}], tmp_path / "out", schema=schema)
    assert run(tmp_path / "out", tmp_path / "again").exit_code == 0
    assert manifest(tmp_path / "again").schema.to_json() == schema.to_json()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.csv", "out", "--shard-bytes", "5 zebras"], "4096, 4K or 1.5G"),
        (["a.csv", "out", "--num-shards", "0"], "x>=1"),
        (["a.csv", "out", "--schema", "a.csv"], "is not JSON"),
        (["a.csv", "out", "--label", "klasse"], "label is 'klasse'"),
        (["b.csv", "out"], "b.csv"),
        (["a.csv"], "Missing argument"),
        (["a.csv", "out", "--storage-options", "anon=true"], "is not a JSON object"),
        (["a.csv", "out", "--source-options", '{"anon": true}'], "source_options"),
    ],
)
def test_requests_that_make_no_sense(arguments: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    done = run(*[str(tmp_path / a) if a in ("a.csv", "b.csv", "out") else a for a in arguments])
    assert done.exit_code == 2, done.output
    assert said in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [["write", "a.csv"], ["index"], ["info"], ["verify"], ["repair"]], ids=" ".join)
def test_options_of_the_driver_are_for_urls(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV)
    command, *source = words
    words = [command, *(str(tmp_path / name) for name in source), str(tmp_path / "out")]
    done = CliRunner().invoke(main, ["data", *words, "--storage-options", '{"anon": true}'])
    assert done.exit_code == 2, done.output
    assert "storage_options are for remote stores" in done.stderr


def test_an_example_that_does_not_fit_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(CSV + "4.5,,c\n")
    done = run(tmp_path / "a.csv", tmp_path / "out")
    assert done.exit_code == 2
    assert "Example 3" in done.stderr
    assert "column 'label' is null" in done.stderr


def test_what_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def write(*arguments: Any, progress: Any, **options: Any) -> data.Manifest:
        seen.update(options, arguments=arguments)
        progress(1, None, 3 << 30)
        return data.Manifest(schema=data.Schema({"x": data.Feature("int64")}), layout="fixed", shards=())

    monkeypatch.setattr(data, "write", write, raising=False)
    options = ["--storage-options", '{"anon": true}', "--source-options", '{"key": "k"}']
    options += ["--split", "train", "--null", "x=-1", "--null", "*=nan", "--null-mask", "y", "--delimiter", "tab"]
    done = run("a", "b", "s3://c", "--shard-bytes", "1.5MiB", "--processes", 3, "--keep", *options)
    assert seen == {
        "arguments": (["a", "b"], "s3://c"),
        "num_shards": None,
        "shard_bytes": 3 << 19,
        "schema": None,
        "label": None,
        "processes": 3,
        "exists": "keep",
        "check_images": True,
        "convert_images": False,
        "storage_options": {"anon": True},
        "source_options": {"key": "k"},
        "split": "train",
        "nulls": {"x": "-1", "*": "nan"},
        "null_masks": ("y",),
        "delimiter": "\t",
    }
    assert done.stderr == "1 example, 3.2 GB\n"
