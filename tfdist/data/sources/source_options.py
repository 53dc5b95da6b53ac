"""Options for reading sources, for what names and first values do not reveal."""

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tfdist import validation
from tfdist.data.format.schema import TEXT, Feature
from tfdist.errors import ConfigError, ConfigTypeError

EVERY = "*"


@dataclass(frozen=True)
class Options:
    """What a caller of `tfdist.data.write` says of tables."""

    nulls: Mapping[str, Any] = field(default_factory=dict)
    null_masks: Sequence[str] = ()
    delimiter: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.nulls, Mapping):
            raise ConfigTypeError(
                f"nulls is {validation.shown(self.nulls)}; it must map columns to the values that stand for null: "
                '{"age": -1}.',
                name="nulls",
                received=validation.shown(self.nulls),
            )
        if isinstance(self.null_masks, str) or not isinstance(self.null_masks, Sequence):
            raise ConfigTypeError(
                f"null_masks is {validation.shown(self.null_masks)}; it must be a list of columns.",
                name="null_masks",
                received=validation.shown(self.null_masks),
            )
        for name in (*self.nulls, *self.null_masks):
            validation.text("a column's name", name)
        if self.delimiter is not None:
            delimiter = validation.text("delimiter", self.delimiter) if self.delimiter != "\t" else "\t"
            if len(delimiter.encode()) != 1 or delimiter in '"\r\n':
                raise ConfigError(
                    f"delimiter is {self.delimiter!r}; it must be one ASCII character that is no quote and no end of a "
                    "line.",
                    name="delimiter",
                    received=self.delimiter,
                )

    @property
    def of_tables(self) -> bool:
        """They say something that only tables have."""
        return bool(self.nulls or self.null_masks)

    def without(self, columns: Container[str]) -> "Options":
        """The options for the other columns."""
        nulls = {name: value for name, value in self.nulls.items() if name not in columns}
        return replace(self, nulls=nulls, null_masks=[name for name in self.null_masks if name not in columns])


NONE = Options()


def spelled(feature: Feature, value: Any) -> Any:
    """A value that may be text, as on a command line or in a folder's name, in the type of a feature.

    Text that is no number stays text, for `column` to refuse.
    """
    if feature.dtype == TEXT or not isinstance(value, str):
        return value
    try:
        if feature.shape:
            return json.loads(value)
        if feature.dtype == "bool" and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return float(value) if feature.dtype.startswith("float") else int(value)
    except ValueError:
        return value
