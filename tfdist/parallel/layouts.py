"""Which axis of a mesh each dim of a weight is cut along: by the weight's path. Loads no TensorFlow.

A pattern is a regular expression for the whole path, as in `keras.distribution.LayoutMap`; a layout names an axis of
the mesh, or None, for each dim of the weight. A weight that no pattern matches lies whole on every process.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfdist import validation
from tfdist.cluster.mesh import Mesh
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.parallel.proposed import Layout, ProposedLayouts

#: asks for layouts that follow from paths and shapes
AUTO = "auto"


class Layouts:
    """The layouts of a model's weights.

    Args:
        mesh: whose axes they name.
        given: patterns and layouts: a dictionary, a `keras.distribution.LayoutMap`, "auto", or None for none. "auto"
            is `ProposedLayouts` along the last axis of the mesh that is not ``batch`` and has more than one place.
        batch: the axis along which examples are shared out.

    Raises:
        ConfigError: a pattern is no regular expression; a layout names an axis that is not there, twice, or the one of
            the examples.
        ConfigTypeError: something else than patterns and layouts.

    Example:
        >>> layouts = Layouts(Mesh.parse("batch=2,model=2"), {".*kernel": (None, "model")}, batch="batch")
        >>> layouts.of("dense/kernel", (4, 6)), layouts.of("dense/bias", (6,))
        ((None, 'model'), (None,))
    """

    def __init__(self, mesh: Mesh, given: Any, *, batch: str) -> None:
        self.mesh = mesh
        self._is_auto = given == AUTO if isinstance(given, str) else False
        axes = [name for name in mesh.others(batch) if mesh.size_of(name) > 1]
        self._proposed = ProposedLayouts(axes[-1], mesh.size_of(axes[-1])) if axes else ProposedLayouts(None, 1)
        #: the layout of each pattern
        self.given: dict[str, Layout] = {} if self._is_auto else _layouts(given, mesh, batch)
        self._seen: dict[str, tuple[int, ...]] = {}
        self._proposals: dict[str, Layout] = {}
        self._matched: set[str] = set()

    @property
    def may_cut(self) -> bool:
        """Whether some weight may be cut."""
        return self._is_auto or bool(self.given)

    def of(self, path: str, shape: Sequence[int]) -> Layout:
        """Return the axis of each dim of a weight, and note that there is such a weight.

        Args:
            path: the weight's.
            shape: the whole weight's.
        Raises:
            ConfigError: several patterns match; the layout has more dims than the weight, or an axis does not divide
                its dim.
        """
        self._seen[path] = tuple(shape)
        if self._is_auto:
            self._proposals[path] = self._proposed.of(path, shape)
            return self._proposals[path]
        pattern = self._pattern_of(path)
        if pattern is None:
            return (None,) * len(shape)
        self._matched.add(pattern)
        layout = self.given[pattern]
        if len(layout) > len(shape):
            raise ConfigError(
                f"the pattern {pattern!r} gives the layout {layout} to {path!r}, whose shape {tuple(shape)} has "
                f"{len(shape)} dim(s). Give the axis of each dim, or None, and no more."
            )
        for dim, axis in enumerate(layout):
            if axis is not None and shape[dim] % self.mesh.size_of(axis):
                raise ConfigError(
                    f"the pattern {pattern!r} gives the layout {layout} to {path!r} of shape {tuple(shape)}: dim {dim} "
                    f"is {shape[dim]}, which the axis {axis!r} of size {self.mesh.size_of(axis)} does not divide. "
                    "Choose a size that it divides, another dim, or None."
                )
        return (*layout, *[None] * (len(shape) - len(layout)))

    def proposal(self, paths: Iterable[str]) -> str | None:
        """Return what "auto" has proposed, as a dictionary to copy into a script; None if it was not asked.

        Args:
            paths: of the weights of a model.
        """
        if not self._is_auto:
            return None
        proposed = ((path, self._proposals.get(path, ())) for path in paths)
        cut = [f"    {path!r}: {layout}," for path, layout in proposed if any(layout)]
        return "\n".join(["layout_map={", *cut, "}"])

    def require_all_matched(self) -> None:
        """Raise if a pattern matches no weight that was made so far.

        Raises:
            ConfigError: one does not; the message has the weights that there are.
        """
        lost = [pattern for pattern in self.given if pattern not in self._matched]
        if lost:
            there = "; ".join(f"{path} {shape}" for path, shape in self._seen.items()) or "none"
            raise ConfigError(
                f"the layouts name {', '.join(map(repr, lost))}, which matches the whole path of no weight. The "
                f"weights are: {there}. A pattern is a regular expression for the whole path; begin it with "
                ".* where a model's name comes first."
            )

    def _pattern_of(self, path: str) -> str | None:
        if path in self.given:
            return path
        found = [pattern for pattern in self.given if re.fullmatch(pattern, path)]
        if len(found) > 1:
            raise ConfigError(
                f"the weight {path!r} is matched by {' and '.join(map(repr, found))}; one pattern may match a weight. "
                "Make them narrower."
            )
        return found[0] if found else None


def local_shape(mesh: Mesh, layout: Layout, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of the part of a weight that each process has.

    Example:
        >>> local_shape(Mesh.parse("batch=2,model=2"), (None, "model"), (4, 6))
        (4, 3)
    """
    return tuple(size if axis is None else size // mesh.size_of(axis) for size, axis in zip(shape, layout, strict=True))


def bounds(mesh: Mesh, layout: Layout, shape: Sequence[int], rank: int) -> tuple[tuple[int, int], ...]:
    """Return for each dim the first index that a process has of a weight, and the one behind the last.

    Example:
        >>> bounds(Mesh.parse("batch=2,model=2"), (None, "model"), (4, 6), rank=3)
        ((0, 4), (3, 6))
    """
    place = mesh.coordinates(rank)
    sizes = local_shape(mesh, layout, shape)
    begins = [0 if axis is None else place[axis] * size for size, axis in zip(sizes, layout, strict=True)]
    return tuple((begin, begin + size) for begin, size in zip(begins, sizes, strict=True))


def _layouts(given: Any, mesh: Mesh, batch: str) -> dict[str, Layout]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigTypeError(
            f"layout_map is {validation.shown(given)} ({type(given).__name__}); it must be a dictionary such as "
            '{".*kernel": (None, "model")}, a keras.distribution.LayoutMap, or "auto".'
        )
    found: dict[str, Layout] = {}
    for pattern in given:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"layout_map has the pattern {pattern!r}, no regular expression: {error}.") from error
        value = given[pattern]
        layout = getattr(value, "axes", value)  # Keras' map has `TensorLayout`s
        if not isinstance(layout, (tuple, list)) or not all(axis is None or isinstance(axis, str) for axis in layout):
            raise ConfigTypeError(
                f"layout_map[{pattern!r}] is {validation.shown(value)}; it must be a tuple with the name of an axis or "
                'None for each dim, such as (None, "model").'
            )
        found[pattern] = tuple(layout)
        named = [mesh.require(axis) for axis in layout if axis is not None]
        if batch in named:
            raise ConfigError(
                f"layout_map[{pattern!r}] is {found[pattern]}, and {batch!r} is the axis along which examples are "
                "shared out; weights are cut along the others."
            )
        if len(set(named)) < len(named):
            raise ConfigError(f"layout_map[{pattern!r}] is {found[pattern]}; an axis may be there once.")
    return found
