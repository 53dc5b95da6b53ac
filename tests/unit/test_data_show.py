"""`tfdist data show`: examples by number, in words, as JSON, and on a contact sheet."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from tests.corruption import flip, write
from tfdist import data
from tfdist.cli.main import main
from tfdist.data.format.schema import Feature
from tfdist.data.looking.contact_sheet import grey_values
from tfdist.data.looking.shown_values import described, picture_size, sentence

FOREIGN = Path(__file__).parents[1] / "goldens" / "foreign"


def run(*arguments: object) -> Result:
    done = CliRunner().invoke(main, ["data", "show", *map(str, arguments)])
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done


def shown(*arguments: object) -> list[dict[str, Any]]:
    done = run(*arguments, "--json")
    assert done.exit_code in (0, 1), done.output
    return json.loads(done.stdout)["shown"]


def picture(kind: str, size: tuple[int, int] = (5, 3), **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (200, 10, 10)).save(file, kind, **options)
    return file.getvalue()


def test_examples_by_number(tmp_path: Path) -> None:
    schema = data.Schema(
        {
            "text": data.Feature("string"),
            "x": data.Feature("float64", (3,)),
            "tokens": data.Feature("int64", (None,)),
            "label": data.Feature("int64", names=("cat", "dog")),
            "when": data.Feature("int64", unit="s since 1970-01-01"),
        }
    )
    rows = [
        {"text": f"größe {n}", "x": [n, np.nan, np.inf], "tokens": np.arange(n), "label": n % 2, "when": n}
        for n in range(9)
    ]
    data.write(rows, tmp_path, schema=schema, num_shards=2)
    done = run(tmp_path, 3, 2)
    assert done.exit_code == 0
    for part in ("example 3,", "example 4,", "'größe 4'", "(dog)", "3 s since", "inf, 1 NaN", "(3,), 0 to 2: 0, 1, 2"):
        assert part in done.stdout
    assert "example 5" not in done.stdout
    found = shown(tmp_path, 7, 100)
    assert [(row["example"], row["file"]) for row in found] == [(7, "data-00001.tfrecord"), (8, "data-00001.tfrecord")]
    assert found[0]["features"]["label"] == {"dtype": "int64", "shape": [], "value": 1, "name": "dog"}
    assert found[0]["features"]["x"]["max"] == "inf", "JSON has no infinite number"
    assert len(shown(tmp_path)) == 5, "by default"


def test_files_of_other_libraries(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": 1, "name": "a"}\n{"x": 2, "name": "b"}\n')
    data.write({"x": np.arange(3)}, tmp_path / "ours")
    for source in (FOREIGN / "web.tar", FOREIGN / "mds", FOREIGN / "saved", tmp_path / "a.jsonl", tmp_path / "ours"):
        number = len(data.open(source)) - 1
        (row,) = shown(source, number)
        assert row["example"] == number
        assert row["features"].keys() == data.open(source).schema.keys()
    (row,) = shown(tmp_path / "ours" / "data-00000.tfrecord", 0, 1, "--records", "raw")
    assert row["features"]["record"]["bytes"] > 0
    arguments = ["data", "stats", str(tmp_path / "ours" / "data-00000.tfrecord"), "--records", "raw", "--json"]
    assert json.loads(CliRunner().invoke(main, arguments).stdout)["features"]["record"]["distinct"] == 3


def test_a_sheet_has_each_picture_in_its_place(tmp_path: Path) -> None:
    colours = [(250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0), (0, 250, 250)]
    contents = [picture("PNG")] * 5
    for place, colour in enumerate(colours):
        file = io.BytesIO()
        Image.new("RGB", (300, 200), colour).save(file, "PNG")
        contents[place] = file.getvalue()
    data.write({"image": [*contents, b"\x89PNG\r\n\x1a\nbroken"], "label": list("abcdef")}, tmp_path / "data")
    done = run(tmp_path / "data", 0, 6, "--out", tmp_path / "sheet.png")
    assert done.exit_code == 0, done.output
    assert "5 pictures" in done.stdout
    assert "1 cannot be decoded" in done.stdout
    sheet = Image.open(tmp_path / "sheet.png")
    assert sheet.size == (3 * 134 + 6, 2 * 150 + 6)
    middles = [(6 + place % 3 * 134 + 64, 6 + place // 3 * 150 + 64) for place in range(6)]
    assert [sheet.getpixel(middle) for middle in middles[:5]] == colours
    assert sheet.getpixel(middles[5]) == (255, 255, 255), "it could not be decoded"
    captions = [np.asarray(sheet)[y + 66 : y + 80, x - 64 : x + 64] for x, y in middles]
    assert all((caption < 128).any() for caption in captions), "each has a number and a label"
    assert len({caption.tobytes() for caption in captions}) == 6


def test_arrays_are_pictures_too(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    for name, shape in (("grey", (8, 8)), ("colours first", (3, 8, 6)), ("one channel", (8, 8, 1))):
        values = rng.random((4, *shape)).astype(np.float32)
        data.write({"x": values}, tmp_path / name)
        assert run(tmp_path / name, "--out", tmp_path / f"{name}.png").exit_code == 0
        assert np.asarray(Image.open(tmp_path / f"{name}.png")).std() > 20
    assert grey_values(np.array([[0.0, np.nan], [5.0, np.inf]])).tolist() == [[0, 0], [255, 255]]
    assert grey_values(np.full((2, 2), 7.0)).tolist() == [[255, 255], [255, 255]]
    assert grey_values(np.array([[0, 7]], np.uint8)).tolist() == [[0, 7]]
    assert grey_values(np.array([[False, True]])).tolist() == [[0, 255]]


def test_what_cannot_be_shown(tmp_path: Path) -> None:
    write(tmp_path / "data", "fixed")
    for arguments, parts in (
        ([10], ["no example 10", "10 examples, 0 to 9"]),
        ([0, 1, "--label", "klasse"], ["'klasse'", "'label', 'x'"]),
        ([0, 1, "--out", "a.png"], ["example 0 has no picture", "float32 (3,)"]),
        ([0, 1, "--out", "a.png", "--picture", "label"], ["no picture in 'label'"]),
        ([0, 0], ["COUNT"]),
    ):
        done = run(tmp_path / "data", *arguments)
        assert done.exit_code == 2
        assert all(part in done.output for part in parts), done.output
    assert not Path("a.png").exists()
    assert run(tmp_path / "nothing").exit_code == 2
    data.write({"image": np.zeros((3, 4, 4), np.uint8)}, tmp_path / "images")
    done = run(tmp_path / "images", "--out", tmp_path / "a.zebra")
    assert (done.exit_code, ".png" in done.output) == (2, True)


def test_a_corrupt_example_is_told_and_the_others_are_shown(tmp_path: Path) -> None:
    write(tmp_path, "extent")
    flip(tmp_path / "data-00000.tfrecord", 14)
    found = shown(tmp_path)
    assert [row["example"] for row in found if "features" in row] == [1, 2, 3, 4]
    assert "data-00000.tfrecord, byte 0" in found[0]["problem"]
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "example 0 is corrupt: data-00000.tfrecord" in done.stdout
    (tmp_path / "data-00001.tfrecord").write_bytes(b"")
    assert (run(tmp_path).exit_code, "data-00001.tfrecord" in run(tmp_path).output) == (1, True)


@pytest.mark.parametrize("kind", ["PNG", "GIF", "BMP", "JPEG"])
def test_sizes_of_pictures(kind: str) -> None:
    for size in ((1, 1), (640, 480), (3, 700)):
        content = picture(kind, size)
        assert picture_size(content) == size
        assert picture_size(content[: min(20, len(content))]) in (None, size), "what was cut off is not invented"
        found = described(Feature("string"), content)
        assert (found["picture"], found["size"]) == (kind, list(size))
    exif = Image.Exif()
    exif[0x010E] = "x" * 300  # a part before the size
    assert picture_size(picture("JPEG", (9, 7), exif=exif, progressive=True)) == (9, 7)


def test_values_in_words() -> None:
    for feature, value, expected in (
        (Feature("string"), b"a\x1b[31m\n", r"'a\x1b[31m\n'"),
        (Feature("string"), b"\xff\xfe" * 20, "40 bytes, fffefffefffefffefffefffefffefffe..."),
        (Feature("string"), b"", "''"),
        (Feature("string"), b"x" * 300, f"'{'x' * 200}' ... (300 characters)"),
        (Feature("string", (None,)), np.array([b"a", b"b"], object), "string (2,): 'a', 'b'"),
        (Feature("float32", (None,)), np.zeros(0, np.float32), "float32 (0,)"),
        (Feature("float32", (2,)), np.full(2, np.nan, np.float32), "float32 (2,): all NaN"),
        (Feature("uint8", (2, 9)), np.arange(18, dtype=np.uint8).reshape(2, 9), "uint8 (2, 9), 0 to 17"),
        (Feature("bool"), np.array(True), "True"),
    ):
        assert sentence(described(feature, value)) == expected
