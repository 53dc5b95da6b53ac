"""Some examples of one or several directories, which are read as one directory is."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.order.epoch_orders import Order
from tfdist.data.order.mixtures import Mixed, Schedule
from tfdist.data.reading.opening import open_directory
from tfdist.errors import ConfigError, ConfigTypeError

Source = Any  # a path, a URL, a list of them, `Examples` or a `View`


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Shares of sources: how many examples each has, by its name, and what `Schedule` and `Mixed` take."""

    sizes: Mapping[str, int]
    schedule: Schedule
    stop: str
    examples: int
    name: str

    def order(self, orders: Sequence[Order]) -> Order:
        """The order of the mixture, from the orders of its sources."""
        inner = ",".join(dict.fromkeys(order.name for order in orders))
        return Mixed(self.schedule, orders, self.stop, self.examples, f"mix:{inner}:{self.name}")


class View:
    """Some examples, by number: what `tfdist.data.select` and `tfdist.data.mix` return, and `tfdist.data.read` takes.

    Args:
        examples: the directory, or several as one.
        ids: the numbers of those that count, int64; None for all.
        mixture: the shares of sources; None for none.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.arange(10)}, folder)
        ...     view = tfdist.data.select(folder, where={"x": lambda x: x % 2 == 1})
        ...     len(view), int(view[1]["x"])
        (5, 3)
    """

    def __init__(
        self, examples: Examples, ids: NDArray[np.int64] | None = None, mixture: Mixture | None = None
    ) -> None:
        self.examples = examples
        self.ids = ids
        self.mixture = mixture

    def __len__(self) -> int:
        return len(self.examples) if self.ids is None else len(self.ids)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))

    def __getitem__(self, number: Any) -> Any:
        """Return an example as a dict of values; of a slice, a list of them."""
        if self.ids is None:
            return self.examples[number]
        if isinstance(number, slice):
            return list(self.examples.each(self.ids[number].tolist()))
        return self.examples[int(self.ids[validation.integer("number", number)])]

    def __repr__(self) -> str:
        kind = f"mixture of {', '.join(self.mixture.sizes)}" if self.mixture else f"of {self.examples.url}"
        return f"View({len(self)} examples, {kind})"

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values of these examples.

        Args:
            values: one for each example of the directory.
        """
        return values if self.ids is None else values[self.ids]

    def all_ids(self) -> NDArray[np.int64]:
        """Return the numbers of these examples in the directory."""
        return np.arange(len(self.examples), dtype=np.int64) if self.ids is None else self.ids


def view_of(source: Source, name: str = "directory", **options: Any) -> View:
    """What a user gives as a source of examples."""
    if isinstance(source, (View, Examples)):
        if any(options.values()):
            given = ", ".join(sorted(key for key, value in options.items() if value))
            raise ConfigError(
                f"{given} must be given where the directory is opened: tfdist.data.open(directory, ...).", name=given
            )
        return source if isinstance(source, View) else View(source)
    if not isinstance(source, (str, os.PathLike, list, tuple)):
        required = "a path, a URL, a list of them, or what tfdist.data.open, select or mix returned."
        raise validation.mismatch(name, source, required, kind=ConfigTypeError)
    return View(open_directory(source, **options))
