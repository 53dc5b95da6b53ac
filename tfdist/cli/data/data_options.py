"""Options that several commands of `tfdist data` take, and what their values mean."""

import json
import re
from pathlib import Path
from typing import Any

import click

from tfdist import data

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def size(_ctx: Any, _param: Any, value: str | None) -> int | None:
    """Return the bytes that a number with an optional unit says.

    Example:
        >>> size(None, None, "256MiB"), size(None, None, "1.5 GB")
        (268435456, 1500000000)
    """
    if value is None:
        return None
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?i?)b?\s*", value, re.IGNORECASE)
    number = int(float(found[1]) * _UNITS.get(found[2].lower(), 0)) if found else 0
    if not number:
        raise click.BadParameter(f"{value!r} is no size; write 500000, 256MiB or 1.5GB.")
    return number


def driver_options(_ctx: Any, _param: Any, value: str | None) -> dict[str, Any] | None:
    """Return what a driver of fsspec takes, which is given as JSON.

    Example:
        >>> driver_options(None, None, '{"anon": true}')
        {'anon': True}
    """
    if value is None:
        return None
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise click.BadParameter(f"{value!r} is no JSON object; write '{{\"anon\": true}}', say.")
    return found


def nulls_of(_ctx: Any, _param: Any, values: tuple[str, ...]) -> dict[str, str]:
    """Return what stands for null in which column.

    Example:
        >>> nulls_of(None, None, ("age=-1", "*=nan"))
        {'age': '-1', '*': 'nan'}
    """
    found = {}
    for value in values:
        name, equals, given = value.partition("=")
        if not equals or not name or name in found:
            raise click.BadParameter(f"{value!r} is no COLUMN=VALUE, or its column is there twice; write age=-1, say.")
        found[name] = given
    return found


storage_option = click.option(
    "--storage-options",
    callback=driver_options,
    metavar="JSON",
    help="For the driver of a URL: '{\"anon\": true}'.",
)


follow_option = click.option(
    "--follow-symlinks",
    is_flag=True,
    help="Read files of DIRECTORY that are symbolic links to files elsewhere, as in the caches of DVC and of hubs.",
)


schema_option = click.option(
    "--schema",
    "schema_file",
    type=click.Path(dir_okay=False, exists=True, path_type=Path),
    metavar="FILE",
    help='What an example consists of, as JSON: {"x": {"dtype": "float32", "shape": [40]}, ...}, or a manifest.',
)


def schema_of(path: Path) -> Any:
    """Return the schema that a file says as JSON, or the one of a manifest."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.UsageError(f"--schema {path} is no JSON: {error}") from error
    return data.Schema.from_json(found.get("schema", found) if isinstance(found, dict) else found)
