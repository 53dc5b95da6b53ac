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
@click.option("--quick", is_flag=True, help="Check only checksums; do not parse records.")
@click.option("--decode", is_flag=True, help="Decode pictures, too: one may have been broken when it was written.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")
@storage_option
@follow_option
def command(directory: str, quick: bool, as_json: bool, **options: Any) -> None:
    """Check every byte of DIRECTORY, and list everything that is corrupt with its file, byte and example.

    The command compares the sizes and checksums of the shards with the manifest, the indices with the shards, and the
    content of each record with the schema. It checks both checksums of each record. All corrupt records of a shard are
    found: after one, reading continues at the next whole record.
    """
    with unwinding(), Reading("verifying") as watch:
        report = data.verify(directory, contents=not quick, progress=watch.show, **options)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=2))
    else:
        echo_some(list(report.lines()), last=1 if report.is_sound else 2)
    if not report.is_sound:
        sys.exit(1)
