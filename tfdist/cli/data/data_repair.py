"""`tfdist data repair`: parse, call `tfdist.data`, show the progress, print the result."""

import json
from pathlib import Path
from typing import Any

import click

from tfdist import data
from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.cli.data.data_options import Reading, echo_some, follow_option, schema_of, schema_option, storage_option


@click.command(
    "repair",
    cls=Command,
    examples={
        "tfdist data repair data/train data/sound": "copies what is whole",
        "tfdist data repair data/train": "takes out what is corrupt",
        "tfdist data repair data/train --rebuild-manifest": "tells the schema from records",
        "tfdist data repair data/train --rebuild-manifest --schema schema.json": "",
    },
    epilog="Exit code: 0 when DIRECTORY, or INTO, is sound now, 1 when it cannot be repaired.",
    page="data-corruption",
)
@click.argument("directory")
@click.argument("into", required=False)
@click.option(
    "--rebuild-manifest", is_flag=True, help="Make manifest.json from the shards, if it is missing or corrupt."
)
@click.option("--drop-missing", is_flag=True, help="Go on without missing shards; their examples are lost.")
@click.option("--decode", is_flag=True, help="Decode pictures, and remove examples with one that cannot be decoded.")
@schema_option()
@click.option("--json", "as_json", is_flag=True, help="Print what was done as one JSON document.")
@storage_option
@follow_option
def command(directory: str, into: str | None, schema_file: Path | None, as_json: bool, **options: Any) -> None:
    """Remove corrupt records from DIRECTORY, or copy the others, and list the lost examples.

    With INTO, all whole records are copied into that directory, and DIRECTORY does not change. Without INTO, shards
    with corrupt records are replaced by copies without them, such as data-00003.repair-2.tfrecord. Missing or wrong
    indices are made from their shards, and the manifest gets the next revision. Sound files are not touched. If the
    command is killed, DIRECTORY is in its old or in its new state.
    """
    with unwinding(), Reading("looking for what is corrupt") as watch:
        schema = schema_of(schema_file) if schema_file else None
        done = data.repair(directory, into, schema=schema, progress=watch.show, **options)
    if as_json:
        click.echo(json.dumps(done.to_json(), indent=2))
    else:
        echo_some(list(done.lines()), last=1)
