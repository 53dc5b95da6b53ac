"""`tfdist recipes`: whole training scripts to copy and change."""

import shutil
from pathlib import Path

import click

from tfdist import resources, validation
from tfdist.cli.common.command import SETTINGS, Command, Group
from tfdist.cli.common.option_parts import completes
from tfdist.errors import ConfigError

_RENAMED = {"single_device": "digits", "elastic": "multi_worker_mirrored"}  # old names, valid until 0.3


@click.group(
    cls=Group,
    examples={
        "tfdist recipes list": "their names, and what each shows",
        "tfdist recipes copy digits": "into digits/",
        "python digits/train.py": "runs it",
    },
    context_settings=SETTINGS,
)
def command() -> None:
    """List the recipes, or copy one to start from.

    A recipe is a folder with a training script that runs as it is, and a card that says when to use it and what to
    expect. They train on data that comes with scikit-learn: python -m pip install 'tfdist[demo]'.
    """


@command.command("list", cls=Command, examples={"tfdist recipes list": ""})
def list_recipes() -> None:
    """List the recipes."""
    for name, folder in resources.recipes().items():
        click.echo(f"{name:<24} {resources.title(folder / 'README.md')}")
    click.echo("tfdist recipes copy NAME copies one into this folder.")


@command.command(
    "copy",
    cls=Command,
    examples={
        "tfdist recipes copy digits": "into digits/",
        "tfdist recipes copy parameter_server training/": "into a folder of another name",
        "python digits/train.py": "runs it",
    },
)
@click.argument("name", shell_complete=completes(resources.recipes))
@click.argument("to", required=False, type=click.Path(file_okay=False, path_type=Path))
def copy(name: str, to: Path | None) -> None:
    """Copy a recipe, to start from it.

    The folder TO must be new; by default it is NAME in this folder.
    """
    recipes = resources.recipes()
    target = Path(name) if to is None else to
    if name in _RENAMED:
        now = _RENAMED[name]
        click.echo(f"The recipe {name!r} is part of {now!r} now; the next version drops the old name.", err=True)
        name = now
    validation.one_of("NAME", name, recipes)
    if target.exists():
        raise ConfigError(
            f"{target} already exists, and is not overwritten. Name another folder: tfdist recipes copy {name} NEW"
        )
    shutil.copytree(recipes[name], target, ignore=shutil.ignore_patterns("__pycache__"))
    for path in sorted(target.rglob("*")):
        click.echo(path)
    click.echo(f"Read {target / 'README.md'}, then: python {target / 'train.py'}")
