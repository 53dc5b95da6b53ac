"""`tfdist cache`: list and remove the files that tfdist keeps between runs."""

import os

import click

from tfdist import cache, validation
from tfdist.cli.common.command import SETTINGS, Command, Group
from tfdist.cli.common.option_parts import completes

_WHAT = {
    "digits": "the data of the recipes",
    "logs": "logs of builds that failed",
    "ops": "compiled ops of tfdist: seconds to compile again",
    "plan": "what was measured and predicted for plans: a minute to measure again",
    "tfrecords": "indexes of TFRecord files of others, and what compressed ones hold",
    "trials": "what was found out of training steps of your own: seconds to try again",
    "wheels": "wheels of Horovod: minutes to build again",
    "work": "what builds have left that were ended in the middle",
}


def _names() -> list[str]:
    return [one.name for one in cache.kept(cache.folder(os.environ))]


@click.group(
    cls=Group,
    examples={"tfdist cache list": "names and sizes", "tfdist cache clean --dry-run": "what would be removed"},
    context_settings=SETTINGS,
)
def command() -> None:
    """List or remove the files that tfdist keeps between runs.

    The folder is TFDIST_CACHE_DIR, else tfdist in XDG_CACHE_HOME, else ~/.cache/tfdist. Everything in it is made anew
    when it is needed; no backup of a training and no data of yours is there.
    """


@command.command("list", cls=Command, examples={"tfdist cache list": ""})
def list_kept() -> None:
    """List the kept files with their sizes."""
    root = cache.folder(os.environ)
    kept = cache.kept(root)
    click.echo(f"{root}{'' if kept else ' keeps nothing.'}")
    for one in kept:
        click.echo(f"  {one.name:<10} {one.size / 1e6:>10,.1f} MB {one.files:>7,} files   {_WHAT.get(one.name, '')}")


@command.command(
    "clean",
    cls=Command,
    examples={
        "tfdist cache clean --dry-run": "what would be removed",
        "tfdist cache clean ops wheels": "these",
        "tfdist cache clean": "all",
    },
)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=completes(_names))
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
def clean(names: tuple[str, ...], dry_run: bool) -> None:
    """Remove kept files.

    Without NAME all of them, otherwise the folders NAME of `tfdist cache list`. A running build loses nothing.

    Running jobs keep what they have loaded. A job that reads TFRecord files of others ends with an error if their index
    in the cache ("tfrecords") is removed, and makes it again at its next start.
    """
    root = cache.folder(os.environ)
    kept = {one.name: one for one in cache.kept(root)}
    for name in names:
        validation.one_of("NAME", name, sorted({*kept, *_WHAT}))
    chosen = tuple(name for name in kept if name in names or not names)
    if not dry_run:
        cache.clean(root, chosen)
    size = sum(kept[name].size for name in chosen)
    what = "would be removed" if dry_run else "removed"
    click.echo(f"{what}: {', '.join(chosen) or 'nothing'} ({size / 1e6:,.1f} MB in {root})")
