"""`tfdist data verify`: parse, call `tfdist.data`, show the progress, print the faults."""

import json
import sys
from typing import Any

import click

from tfdist import data
from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.cli.data.data_options import Reading, echo_some, follow_option, storage_option


@click.command(
    "verify",
    cls=Command,
    examples={
        "tfdist data verify data/train": "all of it",
        "tfdist data verify --quick s3://bucket/train": "checksums alone",
        "tfdist data verify --decode data/train": "pictures are decoded by TensorFlow, too",
        "tfdist data repair data/train": "takes out what was found",
    },
    page="data-corruption",
    epilog="Exit code: 0 when all is sound, 1 when something is corrupt, 2 when the request makes no sense.",
)
@click.argument("directory")
@click.option("--quick", is_flag=True, help="Look at checksums alone; do not take records apart.")
@click.option("--decode", is_flag=True, help="Decode pictures, too: one may have been broken when it was written.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")
@storage_option
@follow_option
def command(directory: str, quick: bool, as_json: bool, **options: Any) -> None:
    """Look at every byte of DIRECTORY, and list everything that is corrupt with its file, byte and example.

    Compared are the sizes and checksums of the shards with the manifest, both checksums of each record, the indices
    with the shards, and what each record holds with the schema. Several corrupt records of one shard are all found:
    behind one, reading goes on where the next whole record begins.
    """
    with unwinding(), Reading("verifying") as watch:
        report = data.verify(directory, contents=not quick, progress=watch.show, **options)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        echo_some(list(report.lines()), last=1 if report.is_sound else 2)
    if not report.is_sound:
        sys.exit(1)
