"""Files that a command writes at its end, after minutes perhaps: what cannot be written is refused at its beginning."""

import os
from pathlib import Path
from typing import Any

import click


class OutputFile(click.Path):
    """The name of a file that can be written: an option's type.

    Example:
        >>> OutputFile().convert("report.json", None, None)
        'report.json'
    """

    def __init__(self, *, allow_dash: bool = False, path_type: type[Any] = str) -> None:
        super().__init__(dir_okay=False, writable=True, allow_dash=allow_dash, path_type=path_type)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name."""
        found = super().convert(value, param, ctx)
        folder = Path(str(found)).parent
        if not (self.allow_dash and str(found) == "-"):
            if not folder.is_dir():
                self.fail(f"{str(found)!r}: there is no folder {str(folder)!r}. Make it, or name another.", param, ctx)
            if not os.access(folder, os.W_OK | os.X_OK):
                self.fail(f"{str(found)!r}: nothing can be written into {str(folder)!r}. Name another.", param, ctx)
        return found


json_option = click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=OutputFile(allow_dash=True),
    help="Write the report as JSON; - for standard output.",
)
plot_option = click.option("--plot", metavar="FILE", type=OutputFile(path_type=Path), help="Draw it, as a PNG.")
