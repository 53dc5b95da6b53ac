"""`tfdist data write`: parse, call `tfdist.data`, show the progress, print the result."""

import time
from pathlib import Path
from typing import Any

import click
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tfdist import data
from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import Watch, screen, unwinding
from tfdist.cli.data.data_options import (
    driver_options,
    nulls_of,
    readable,
    schema_of,
    schema_option,
    schema_table,
    size,
    storage_option,
)
from tfdist.validation import counted

_STEP_PERCENT = 10  # progress between two lines, if there is no terminal
_STEP_BYTES = 1 << 30  # the same if the total is unknown


@click.command(
    "write",
    cls=Command,
    groups={
        "What is read": ("label", "schema_file", "split", "delimiter", "nulls", "null_masks", "source_options"),
        "What is written": ("num_shards", "shard_bytes", "exists", "processes", "storage_options"),
        "Pictures": ("check_images", "convert_images"),
    },
    examples={
        "tfdist data write photos data": "photos/train/CLASS/*.jpg",
        "tfdist data write 'tables/*.parquet' data/rows": "every column a feature",
        "tfdist data write iris.csv data/iris --label species": "",
        "tfdist data write old/*.tfrecord data/new": "indexed, and balanced",
    },
    page="data-writing",
    epilog="Exit code: 0 when all was written, 1 when it was not, 2 when the request makes no sense.",
)
@click.argument("source", nargs=-1, required=True)
@click.argument("directory")
@click.option("--num-shards", type=click.IntRange(1), metavar="N", help="Number of TFRecord files.")
@click.option("--shard-bytes", callback=size, metavar="SIZE", help="Approximate size of each; 256MiB by default.")
@click.option("--label", metavar="NAME", help='Feature that is learnt; "label", if there is one.')
@schema_option("Features of an example as JSON, or a manifest.")
@click.option(
    "--processes", type=click.IntRange(1), metavar="N", help="Processes that write; as many as help by default."
)
@click.option("--split", metavar="NAME", help="Split to write; all by default.")
@click.option("--delimiter", metavar="CHARACTER", help="Delimiter of CSV files; a tab in .tsv, else a comma.")
@click.option(
    "--null",
    "nulls",
    multiple=True,
    callback=nulls_of,
    metavar="COLUMN=VALUE",
    help="Value in place of nulls: age=-1; x[]=0 in lists.",
)
@click.option(
    "--null-mask",
    "null_masks",
    multiple=True,
    metavar="COLUMN",
    help="Column that may be null; COLUMN_is_null says where.",
)
@click.option("--overwrite", "exists", flag_value="overwrite", help="Replace the examples in DIRECTORY.")
@click.option("--append", "exists", flag_value="append", help="Add to the examples in DIRECTORY.")
@click.option("--keep", "exists", flag_value="keep", help="If it has examples, write nothing; exit with 0.")
@click.option(
    "--check-images/--no-check-images", default=True, show_default=False, help="Decode each picture first; the default."
)
@click.option("--convert-images", is_flag=True, help="Convert BMP and WebP to PNG; else refused.")
@storage_option
@click.option(
    "--source-options", callback=driver_options, metavar="JSON", help="Options of the driver, if SOURCE is a URL."
)
def command(
    source: tuple[str, ...],
    directory: str,
    schema_file: Path | None,
    delimiter: str | None,
    exists: str | None,
    **options: Any,
) -> None:
    """Write the examples of SOURCE as TFRecord shards, an index and a manifest into DIRECTORY.

    SOURCE is files of one kind, a folder of them, or a wildcard: CSV (.csv, .tsv, .csv.gz), Parquet, Arrow, HDF5
    (file.h5:/group), NumPy (.npz, .npy), TFRecord (of any name, compressed or not), or a folder with one folder of
    pictures per class; with folders train, test, ... each is written. Both may be URLs such as s3://bucket/folder.

    DIRECTORY has no examples before all are written. After an interruption, the same command resumes.
    """
    schema = None if schema_file is None else schema_of(schema_file)
    started = time.monotonic()
    with unwinding(), _Watch() as watch:
        written = data.write(
            source[0] if len(source) == 1 else list(source),
            directory,
            schema=schema,
            exists=exists or "raise",
            progress=watch.show,
            delimiter={"\\t": "\t", "tab": "\t"}.get(delimiter or "", delimiter),
            **options,
        )
    seconds = time.monotonic() - started
    folder = directory.rstrip("/")
    several = {f"{folder}/{name}": one for name, one in written.items()} if isinstance(written, dict) else {}
    manifests = several or {directory: written}
    for place, one in manifests.items():
        shards = counted(len(one.shards), "shard")
        size = readable(one.total_bytes)
        click.echo(f"{place} has {counted(one.examples, 'example')} in {shards}, {size}, in {seconds:.0f} s.")
    first = next(iter(manifests.values()))
    screen(200, highlight=False).print(schema_table(first.schema.to_json(), first.label))


class _Watch(Watch):
    """Progress on standard error: a bar on a terminal, or occasional lines elsewhere."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._task = self.progress.add_task("looking at the examples", total=None)
        self._step = 0

    def show(self, examples: int, total: int | None, written: int) -> None:
        said = f"{counted(examples, 'example')}, {readable(written)}"
        self.progress.update(self._task, description=said, total=total, completed=examples)
        step = 100 * examples // total // _STEP_PERCENT if total else written // _STEP_BYTES
        if not self.is_terminal and step > self._step:
            click.echo(f"{said} ({examples / total:.0%})" if total else said, err=True)
        self._step = max(self._step, step)
