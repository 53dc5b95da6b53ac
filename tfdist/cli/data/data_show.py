"""`tfdist data show`: parse, read examples by their numbers, print their values, draw their pictures."""

import json
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from tfdist import data
from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.cli.data.data_options import follow_option, records_option, storage_option
from tfdist.data.looking.contact_sheet import MOST, Drawn, write_sheet
from tfdist.data.looking.shown_values import described, is_picture, label_text, sentence
from tfdist.errors import ConfigError, CorruptDataError


@click.command(
    "show",
    cls=Command,
    examples={
        "tfdist data show data/train": "the first five",
        "tfdist data show data/train 1000 3": "examples 1000 to 1002",
        "tfdist data show data/train 0 100 --out sheet.png": "their pictures, on one sheet",
        "tfdist data show 'shards/*.tar' --json": "for programs",
    },
    page="data-looking",
    epilog="Exit code: 0 when all could be read, 1 when one is corrupt, 2 when the request makes no sense.",
)
@click.argument("directory")
@click.argument("first", type=click.IntRange(0), default=0)
@click.argument("count", type=click.IntRange(1), default=5)
@click.option("--out", metavar="FILE", help="Draw the pictures into FILE, each with its label (needs Pillow).")
@click.option("--picture", metavar="NAME", help="Feature to draw; by default the first picture.")
@click.option("--label", metavar="NAME", help="Feature to write below a picture; by default the label.")
@records_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document, with whole texts.")
@storage_option
@follow_option
def command(
    directory: str,
    first: int,
    count: int,
    out: str | None,
    picture: str | None,
    label: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Show COUNT examples of DIRECTORY from number FIRST on, in the order of writing: 0 and 5 by default.

    DIRECTORY is anything that `tfdist.data.open` takes: a directory, TFRecord files of others, tar shards, MDS, Arrow,
    JSON lines, ... Texts are shown as they are, arrays by their shape, dtype and range. Numbers are those of `open`.
    """
    with unwinding():
        examples = data.open(directory, **options)
        total = len(examples)
        if first >= total:
            have = f"has {total} examples, 0 to {total - 1}" if total else "has no example"
            raise ConfigError(
                f"there is no example {first}: {directory} {have}. Pass a smaller FIRST.", name="first", received=first
            )
        label = label or examples.manifest.label
        for argument, name in (("--label", label), ("--picture", picture)):
            if name is not None and name not in examples.schema:
                raise ConfigError(
                    f"{argument} is {name!r}; the examples have {', '.join(map(repr, examples.schema))}.",
                    name=argument,
                    received=name,
                )
        numbers = range(first, min(first + count, total))
        if out is not None and len(numbers) > MOST:
            raise ConfigError(f"COUNT is {count}; a sheet has at most {MOST} pictures.", name="count", received=count)
        drawn: list[Drawn] = []
        shown: Any = _shown(examples, numbers, drawn if out else None, picture, label)
        if out is not None:
            shown = list(shown)
            failed = write_sheet(drawn, out) if drawn else 0
            said = f"{out} shows {len(drawn) - failed} pictures" + f"; {failed} cannot be decoded" * bool(failed)
            click.echo(f"{said}.", err=as_json)
        problems = (
            _print_json(shown, directory, total, label) if as_json else _print(shown, problems_alone=out is not None)
        )
    if problems:
        sys.exit(1)


def _shown(
    examples: Any, numbers: Sequence[int], drawn: list[Drawn] | None, picture: str | None, label: str | None
) -> Iterator[dict[str, Any]]:
    """Yield a description of each example, or the reason why it cannot be read; add the pictures to `drawn`."""
    schema, shards = examples.schema, examples.manifest.shards
    for number in numbers:
        file = shards[int(examples.begins.searchsorted(number, side="right")) - 1].file
        try:
            row = next(examples.each([number]))
        except CorruptDataError as error:
            yield {"example": number, "file": file, "problem": str(error)}
            continue
        found = {name: described(feature, row[name]) for name, feature in schema.items()}
        if drawn is not None:
            picture = picture or next((name for name, one in schema.items() if is_picture(one, row[name])), None)
            if picture is None or not is_picture(schema[picture], row[picture]):
                raise _without_picture(number, picture, found)
            text = f"{number}: {label_text(schema[label], row[label])}" if label else str(number)
            drawn.append(Drawn(row[picture], text))
        yield {"example": number, "file": file, "features": found}


def _without_picture(number: int, picture: str | None, found: dict[str, dict[str, Any]]) -> ConfigError:
    there = ", ".join(f"{name!r} ({sentence(one)})" for name, one in found.items())
    return ConfigError(
        f"example {number} has no picture{f' in {picture!r}' if picture else ''}: JPEG, PNG, GIF, BMP or WebP, or an "
        f"array (height, width), with 1, 3 or 4 channels if it has any. It has {there}. Leave --out away.",
        name="--picture",
        received=picture,
    )


def _print_json(shown: Any, directory: str, total: int, label: str | None) -> int:
    rows = list(shown)
    content = {"directory": directory, "examples": total, "label": label, "shown": rows}
    click.echo(json.dumps(content, indent=2, allow_nan=False))
    return sum("problem" in row for row in rows)


def _print(shown: Any, *, problems_alone: bool) -> int:
    problems = 0
    for row in shown:
        if "problem" in row:
            problems += 1
            click.echo(row["problem"], err=problems_alone)
        elif not problems_alone:
            click.echo(f"example {row['example']}, {row['file']}")
            width = max(map(len, row["features"]))
            for name, found in row["features"].items():
                click.echo(f"  {name:<{width}}  {sentence(found)}")
    return problems
