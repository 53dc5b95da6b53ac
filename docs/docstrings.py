"""Extensions of griffe, which reads the sources for the API reference: sections of docstrings, and defaults of options.

It knows `Examples:`, where this project has `Example:`, and wants an empty line before each section, where a short
docstring has none. Without this they would be shown as text.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
SECTION = re.compile(r"(?<=[^\n])\n(?=(?:Args|Attributes|Returns|Raises|Examples):$)", re.MULTILINE)


class Sections(griffe.Extension):
    """Change the docstrings as they are read, before they are parsed."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of one object."""
        if obj.docstring is not None:
            obj.docstring.value = SECTION.sub("\n\n", EXAMPLE.sub("Examples:", obj.docstring.value))


class Defaults(griffe.Extension):
    """Show the default of a field that `tfdist.options.option` makes, in place of the call."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Change the value of one attribute."""
        made = attr.value
        if isinstance(made, griffe.ExprCall) and str(made.function) == "option" and made.arguments:
            attr.value = made.arguments[0]
