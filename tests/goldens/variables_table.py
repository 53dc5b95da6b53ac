"""The variables of tfdist: their names, defaults and which side sets them."""

from tfdist import variables


def variables_table() -> str:
    return "".join(f"{one.name}  default {one.default!r}, set by {one.set_by}\n" for one in variables.ALL)
