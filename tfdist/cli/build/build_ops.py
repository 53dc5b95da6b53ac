"""The command `tfdist build ops`."""

import os
import time

import click

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import unwinding
from tfdist.native import build_target, library


@click.command(
    "ops",
    cls=Command,
    examples={"tfdist build ops": "seconds, nothing when they are kept", "tfdist build ops --force": "anew"},
    epilog="Exit code: 0 when they are kept, 1 when they were not compiled, 2 when they cannot be kept.",
    page="data-reading",
)
@click.option("--force", is_flag=True, help="Compile again, even if they are kept.")
def command(force: bool) -> None:
    """Compile tfdist's own TensorFlow ops, and say where they are kept.

    They read records of TFRecord files (`tfdist.data.read`), reduce tensors of workers of one host in shared memory,
    compress gradients (`tfdist.compression`), and record steps (`tfdist run --monitor`). The first process that needs
    them compiles them, so this command is for places where nothing can be compiled later, such as images. It takes
    seconds and a C++ compiler (g++). If the ops are missing, or TFDIST_NATIVE is 0, NumPy reads the same records, and
    TensorFlow's ops do the same for gradients and steps.

    They are kept per versions of TensorFlow, C library and sources in TFDIST_CACHE_DIR, else $XDG_CACHE_HOME/tfdist,
    else ~/.cache/tfdist.
    """
    here = build_target.observe()
    for of in library.LIBRARIES:
        started = time.monotonic()
        with unwinding():
            built = library.build(
                of, here, os.environ, force=force, on_start=lambda sentence: click.echo(sentence, err=True)
            )
        took = f"were compiled in {time.monotonic() - started:.0f} s" if built.was == "built" else "are compiled"
        click.echo(f"The ops of {of.name} for TensorFlow {here.version} {took}.\nThe library: {built.path}")
