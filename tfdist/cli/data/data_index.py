"""`tfdist data index`: parse, call `tfdist.data`, print the features of the records."""

from pathlib import Path
from typing import Any

import click

from tfdist import data
from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import Phases, unwinding
from tfdist.cli.data.data_options import follow_option, schema_of, schema_option, storage_option
from tfdist.data.writing.foreign_tfrecords import shown_features
from tfdist.validation import counted


@click.command(
    "index",
    cls=Command,
    examples={
        "tfdist data index old-data": "beside the files",
        "tfdist data index 'old-data/train-*' --label image/class/label": "some files",
        "tfdist data index 'shards/*.tar'": "members of tars",
        "tfdist data info old-data": "what they hold",
    },
    page="data",
)
@click.argument("directory")
@click.option("--label", metavar="NAME", help='The feature that is learnt; "label" by default, if there is one.')
@schema_option()
@click.option("--split", metavar="NAME", help="Split to take, if the names of files show several: train.")
@click.option("--overwrite", "exists", flag_value="overwrite", help="Replace the existing manifest and indices.")
@storage_option
@follow_option
def command(directory: str, schema_file: Path | None, exists: str | None, **options: Any) -> None:
    """Index the files in DIRECTORY as they are: TFRecord files get an index each and a manifest, nothing else.

    DIRECTORY may also be a file, or a wildcard for files in one folder. Their index is then in the user's cache, like
    that of a folder that cannot be written, and every command with the same DIRECTORY finds it. The records of files
    that are compressed with GZIP or ZLIB are written into the cache, too.

    The records must be tf.train.Example, and the files of one split. All records decide the features: one value in each
    record makes a single value, an equal number in each an array, and anything else a list of any length.

    Tars, JSON lines, LMDB and ArrayRecord files are read once, and the result is kept in .tfdist next to them. Without
    this command it is kept in the user's cache when files of 4 MiB or more are first read.
    """
    with unwinding(), Phases("looking at the records"):
        schema = schema_of(schema_file) if schema_file else None
        manifest = data.index(directory, schema=schema, exists=exists or "raise", **options)
    click.echo(
        f"{directory} has {counted(manifest.examples, 'example')} in {counted(len(manifest.shards), 'shard')}, layout "
        f"{manifest.layout}: {shown_features(manifest)}"
    )
