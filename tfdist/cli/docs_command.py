"""`tfdist docs`: the pages of documentation, in the terminal."""

import sys

import click
from rich.console import Console
from rich.markdown import Markdown

from tfdist import resources, validation
from tfdist.cli.common.command import Command
from tfdist.cli.common.option_parts import completes
from tfdist.errors import ConfigError


@click.command(
    cls=Command,
    examples={
        "tfdist docs": "the pages",
        "tfdist docs data": "one of them",
        "tfdist docs large-batch > large-batch.md": "elsewhere than on a terminal: as it was written",
    },
)
@click.argument("page", required=False, shell_complete=completes(resources.pages))
@click.option("--path", "show_path", is_flag=True, help="Print the path of the page, or of the folder of all.")
def command(page: str | None, show_path: bool) -> None:
    """Show a page of documentation; without PAGE, list all pages."""
    pages = resources.pages()
    if page is not None and page not in pages:
        raise ConfigError(
            f"PAGE is {page!r}, and there is no such page.{validation.nearest(page, pages)} `tfdist docs` lists them.",
            name="PAGE",
            received=page,
        )
    if show_path:
        click.echo(resources.root() / "docs" if page is None else pages[page])
    elif page is None:
        width = max(map(len, pages))
        for name, path in pages.items():
            click.echo(f"{name:<{width}}  {resources.title(path)}")
    elif sys.stdout.isatty():
        console = Console()
        with console.pager(styles=True):
            console.print(Markdown(pages[page].read_text(encoding="utf-8")))
    else:
        click.echo(pages[page].read_text(encoding="utf-8"), nl=False)
