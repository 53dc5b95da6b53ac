"""Map weights to layouts by their paths: the mesh axis along which each dim is cut. Loads no TensorFlow.

A pattern is a regular expression for the whole path, as in `keras.distribution.LayoutMap`; a layout names an axis of
the mesh, or None, for each dim of the weight. A weight that no pattern matches lies whole on every process.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfdist import validation
from tfdist.cluster.mesh import Mesh
from tfdist.cluster.strategy_table import AUTO_OF
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.parallel.auto_layout import Layout, ProposedLayouts
from tfdist.parallel.sequence_outputs import SUFFIX, OutputLayouts, pattern_of

#: asks for layouts that follow from paths and shapes
AUTO = "auto"
#: asks for them for all weights, and that activations lie in parts of their sequence
AUTO_SEQUENCE = "auto-sequence"


class Layouts:
    """The layouts of a model's weights.

    Example:
        >>> layouts = Layouts(Mesh.parse("batch=2,model=2"), {".*kernel": (None, "model")}, batch="batch")
        >>> layouts.of("dense/kernel", (4, 6)), layouts.of("dense/bias", (6,))
        ((None, 'model'), (None,))
    """

    def __init__(self, mesh: Mesh, given: Any, *, batch: str) -> None:
        self.mesh = mesh
        is_of = isinstance(given, str) and given.startswith(AUTO_OF)
        self._is_auto = is_of or (isinstance(given, str) and given in (AUTO, AUTO_SEQUENCE))
        self._layers = {name.strip() for name in given.removeprefix(AUTO_OF).split(",")} if is_of else None
        axes = [name for name in mesh.others(batch) if mesh.size_of(name) > 1]
        if self._is_auto:
            every: dict[str, Layout] = {}
            is_sequence = given == AUTO_SEQUENCE and axes
            outputs: dict[str, Layout] = {f".*{SUFFIX}": (batch, axes[-1])} if is_sequence else {}
        else:
            every = _layouts(given, mesh, batch)
            outputs = {pattern: layout for pattern, layout in every.items() if pattern.endswith(SUFFIX)}
        #: of activations
        self.outputs = OutputLayouts(mesh, outputs, batch=batch)
        self._proposed = ProposedLayouts(axes[-1], mesh.size_of(axes[-1])) if axes else ProposedLayouts(None, 1)
        #: the layout of each pattern for weights
        self.given = {pattern: layout for pattern, layout in every.items() if pattern not in outputs}
        self._seen: dict[str, tuple[int, ...]] = {}
        self._proposals: dict[str, Layout] = {}
        self._matched: set[str] = set()

    @property
    def may_cut(self) -> bool:
        """Whether some weight or activation may be cut."""
        return self._is_auto or bool(self.given) or self.outputs.may_cut

    def of(self, path: str, shape: Sequence[int]) -> Layout:
        """Return the axis of each dim of a weight, and note that there is such a weight."""
        self._seen[path] = tuple(shape)
        if self._is_auto:
            self._proposals[path] = self._proposal(path, shape)
            return self._proposals[path]
        pattern = pattern_of(self.given, path, "the weight")
        if pattern is None:
            return (None,) * len(shape)
        self._matched.add(pattern)
        layout = self.given[pattern]
        if len(layout) > len(shape):
            raise ConfigError(
                f"the pattern {pattern!r} gives the layout {layout} to {path!r}, whose shape {tuple(shape)} has "
                f"{len(shape)} dim(s). Give the axis of each dim, or None, and no more.",
                name=path,
                received=str(layout),
            )
        for dim, axis in enumerate(layout):
            if axis is not None and shape[dim] % self.mesh.size_of(axis):
                raise ConfigError(
                    f"the pattern {pattern!r} gives the layout {layout} to {path!r} of shape {tuple(shape)}: dim {dim} "
                    f"is {shape[dim]}, which the axis {axis!r} of size {self.mesh.size_of(axis)} does not divide. "
                    "Choose a size that it divides, another dim, or None.",
                    name=path,
                    received=str(layout),
                )
        return (*layout, *[None] * (len(shape) - len(layout)))

    def _proposal(self, path: str, shape: Sequence[int]) -> Layout:
        if self._layers is None:
            return self._proposed.of(path, shape)
        named = self._layers.intersection(path.split("/"))
        self._matched |= named
        return self._proposed.of(path, shape) if named else self._proposed.whole(shape)

    def proposal(self, paths: Iterable[str]) -> str | None:
        """Return what "auto" has proposed, as a dictionary to copy into a script; None if it was not asked."""
        if not self._is_auto:
            return None
        proposed = ((path, self._proposals.get(path, ())) for path in paths)
        cut = [f"    {path!r}: {layout}," for path, layout in proposed if any(layout)]
        cut += [f"    {pattern!r}: {layout}," for pattern, layout in self.outputs.given.items()]
        return "\n".join(["layout_map={", *cut, "}"])

    def require_all_matched(self) -> None:
        """Raise if a pattern matches no weight that was made so far."""
        lost = [pattern for pattern in (*self.given, *sorted(self._layers or ())) if pattern not in self._matched]
        if lost:
            there = "; ".join(f"{path} {shape}" for path, shape in self._seen.items()) or "none"
            raise ConfigError(
                f"the layouts name {', '.join(map(repr, lost))}, which matches the whole path of no weight. The "
                f"weights are: {there}. A pattern is a regular expression for the whole path; begin it with "
                ".* where a model's name comes first.",
                name="layout_map",
                received=", ".join(lost),
            )


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
            '{".*kernel": (None, "model")}, a keras.distribution.LayoutMap, "auto" or "auto-sequence".',
            name="layout_map",
            received=validation.shown(given),
        )
    found: dict[str, Layout] = {}
    for pattern in given:
        try:
            re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(
                f"layout_map has the pattern {pattern!r}, no regular expression: {error}.",
                name="layout_map",
                received=pattern,
            ) from error
        value = given[pattern]
        layout = getattr(value, "axes", value)  # Keras' map has `TensorLayout`s
        if not isinstance(layout, (tuple, list)) or not all(axis is None or isinstance(axis, str) for axis in layout):
            raise ConfigTypeError(
                f"layout_map[{pattern!r}] is {validation.shown(value)}; it must be a tuple with the name of an axis or "
                'None for each dim, such as (None, "model").',
                name=f"layout_map[{pattern!r}]",
                received=validation.shown(value),
            )
        found[pattern] = tuple(layout)
        named = [mesh.require(axis) for axis in layout if axis is not None]
        if batch in named and not pattern.endswith(SUFFIX):
            raise ConfigError(
                f"layout_map[{pattern!r}] is {found[pattern]}, and {batch!r} is the axis along which examples are "
                "shared out; weights are cut along the others.",
                name=f"layout_map[{pattern!r}]",
                received=found[pattern],
            )
        if len(set(named)) < len(named):
            raise ConfigError(
                f"layout_map[{pattern!r}] is {found[pattern]}; an axis may be there once.",
                name=f"layout_map[{pattern!r}]",
                received=found[pattern],
            )
    return found
