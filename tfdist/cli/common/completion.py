"""Shell completion of option values."""

from collections.abc import Iterable

import click

from tfdist import resources
from tfdist.cluster import strategy_table


def beginning(names: Iterable[str], incomplete: str) -> list[str]:
    """Return the names that begin so, each once.

    Example:
        >>> beginning(["ring", "mirrored", "ring"], "r")
        ['ring']
    """
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def strategies(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the strategies that begin so."""
    return beginning(strategy_table.names(), incomplete)


def columns(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the strategies and columns of the matrix that begin so."""
    from tfdist.verify.column import COLUMNS

    return beginning([*strategy_table.names(), *(one.name for one in COLUMNS)], incomplete)


def features(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the features and groups of the matrix that begin so."""
    from tfdist.verify.feature import features as every

    found = every().values()
    return beginning([*(one.group for one in found), *(one.name for one in found)], incomplete)


def recipes(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the recipes that begin so."""
    return beginning(resources.recipes(), incomplete)


def pages(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the pages of documentation that begin so."""
    return beginning(resources.pages(), incomplete)
