"""Layouts of weights and activations by their paths: the mesh axis that cuts each dim. Loads no TensorFlow.

A pattern is a regular expression for the whole path, as in `keras.distribution.LayoutMap`; a layout names an axis of
the mesh, or None, for each dim. A weight that no pattern matches is whole on every process. An activation has its
layer's path with ``/output`` after it; its layout has the axis of the examples or None, then the sequence's axis.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfdist import validation
from tfdist.cluster.mesh import Mesh
from tfdist.cluster.strategy_table import AUTO_OF
from tfdist.errors import ConfigError, ConfigTypeError

#: the axis of the mesh that cuts each dim
DimAxes = tuple[str | None, ...]

_PROJECTIONS = ("query", "key", "value", "gate")
_BACK = "attention_output"
#: asks for layouts that follow from paths and shapes
AUTO = "auto"
#: asks for them for all weights, and that activations lie in parts of their sequence
AUTO_SEQUENCE = "auto-sequence"
#: the end of a pattern for a layer's output; the layer's path comes before it
SUFFIX = "/output"
#: the layout of what is to be whole
WHOLE = ""


class Layouts:
    """The layouts of a model's weights and activations."""

    def __init__(self, mesh: Mesh, given: Any, *, batch: str) -> None:
        self.mesh, self._batch = mesh, batch
        is_of = isinstance(given, str) and given.startswith(AUTO_OF)
        self._is_auto = is_of or (isinstance(given, str) and given in (AUTO, AUTO_SEQUENCE))
        self._layers = {name.strip() for name in given.removeprefix(AUTO_OF).split(",")} if is_of else None
        axes = [name for name in mesh.others(batch) if mesh.size_of(name) > 1]
        if self._is_auto:
            every: dict[str, DimAxes] = {}
            is_sequence = given == AUTO_SEQUENCE and axes
            outputs: dict[str, DimAxes] = {f".*{SUFFIX}": (batch, axes[-1])} if is_sequence else {}
        else:
            every = _layouts(given, mesh, batch)
            outputs = {pattern: layout for pattern, layout in every.items() if pattern.endswith(SUFFIX)}
        #: the layouts of activations
        self.outputs = OutputLayouts(mesh, outputs, batch=batch)
        self._proposed = ProposedLayouts(axes[-1], mesh.size_of(axes[-1])) if axes else ProposedLayouts(None, 1)
        #: the layout of each pattern for weights
        self.given = {pattern: layout for pattern, layout in every.items() if pattern not in outputs}
        self._seen: dict[str, tuple[int, ...]] = {}
        self._proposals: dict[str, DimAxes] = {}
        self._matched: set[str] = set()

    @property
    def may_cut(self) -> bool:
        return self._is_auto or bool(self.given) or self.outputs.may_cut

    def of(self, path: str, shape: Sequence[int]) -> DimAxes:
        """Return the axis of each dim of a weight, and record that the weight exists."""
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
                f"{validation.counted(len(shape), 'dim')}. Give the axis of each dim, or None, and no more.",
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

    def _proposal(self, path: str, shape: Sequence[int]) -> DimAxes:
        if self._layers is None:
            return self._proposed.of(path, shape)
        named = self._layers.intersection(path.split("/"))
        self._matched |= named
        return self._proposed.of(path, shape) if named else self._proposed.whole(shape)

    def proposal(self, paths: Iterable[str]) -> str | None:
        """Format the proposals of "auto" as a dictionary to copy into a script; None if there is nothing to tell."""
        if not self._is_auto:
            if self.given or self.outputs.given or self.mesh.size_of(self._batch) == self.mesh.size:
                return None
            return (
                f"layout_map={{}}, which divides no weight: each device of {self.mesh} has all of them, and those that "
                f"differ along other axes than {self._batch!r} repeat each other's work. layout_map='auto', or "
                "TFDIST_LAYOUTS=auto, divides weights"
            )
        proposed = ((path, self._proposals.get(path, ())) for path in paths)
        cut = [f"    {path!r}: {layout}," for path, layout in proposed if any(layout)]
        cut += [f"    {pattern!r}: {layout}," for pattern, layout in self.outputs.given.items()]
        if not cut and self.mesh.size_of(self._batch) == self.mesh.size > 1:
            return (
                f"layout_map={{}}, which divides no weight: all devices of {self.mesh} are along {self._batch!r}, "
                f"where examples are divided. A mesh such as batch=1,model={self.mesh.size} divides weights"
            )
        return "\n".join(["layout_map={", *cut, "}"])

    def require_all_matched(self) -> None:
        """Raise if a pattern matches none of the weights that were made so far."""
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


def local_shape(mesh: Mesh, layout: DimAxes, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of each process's part of a weight."""
    return tuple(size if axis is None else size // mesh.size_of(axis) for size, axis in zip(shape, layout, strict=True))


def bounds(mesh: Mesh, layout: DimAxes, shape: Sequence[int], rank: int) -> tuple[tuple[int, int], ...]:
    """Return for each dim the first index of a process's part, and its last index plus 1."""
    place = mesh.coordinates(rank)
    sizes = local_shape(mesh, layout, shape)
    begins = [0 if axis is None else place[axis] * size for size, axis in zip(sizes, layout, strict=True)]
    return tuple((begin, begin + size) for begin, size in zip(begins, sizes, strict=True))


def _layouts(given: Any, mesh: Mesh, batch: str) -> dict[str, DimAxes]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigTypeError(
            f"layout_map is {validation.shown(given)} ({type(given).__name__}); it must be a dictionary such as "
            '{".*kernel": (None, "model")}, a keras.distribution.LayoutMap, "auto" or "auto-sequence".',
            name="layout_map",
            received=validation.shown(given),
        )
    found: dict[str, DimAxes] = {}
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


class ProposedLayouts:
    """The layouts of `layout_map="auto"`, from the paths and shapes of weights in the order in which they are made.

    - a dense kernel is cut by columns; the next one is cut by rows if it has as many rows as that one has columns
    - projections of attention are cut by heads, convolutions by filters
    - a table is cut by words, or by columns if the axis does not divide the words
    - a bias is cut like the dims of its kernel to which it is added
    - other weights with several dims are cut along the last dim that the axis divides; all others are whole

    Example:
        >>> proposed = ProposedLayouts("model", 2)
        >>> proposed.of("up/kernel", (8, 32)), proposed.of("up/bias", (32,)), proposed.of("down/kernel", (32, 8))
        ((None, 'model'), ('model',), ('model', None))

    Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    2019. That system knows the model. This one knows names and sizes, so it may cut a layer by rows without need, which
    is right but costs a cut.
    """

    def __init__(self, axis: str | None, size: int) -> None:
        self._axis = axis
        self._size = size
        self._columns: int | None = None  # of the dense kernel before, if it lies by columns
        self._kernels: dict[str, tuple[tuple[int, ...], DimAxes]] = {}

    def of(self, path: str, shape: Sequence[int]) -> DimAxes:
        """Return the axis of each dim of a weight that is being made."""
        layer, _, name = path.rpartition("/")
        shape = tuple(shape)
        if name == "kernel":
            layout = self._kernel(layer.rpartition("/")[2], shape)
            self._kernels[layer] = shape, layout
            return layout
        if name == "embeddings":
            return self._first_that_fits(shape, range(len(shape)))
        known, layout = self._kernels.get(layer, ((), ()))
        if shape and known[-len(shape) :] == shape:
            return layout[-len(shape) :]
        return self._last_that_fits(shape) if len(shape) > 1 else (None,) * len(shape)

    def whole(self, shape: Sequence[int]) -> DimAxes:
        """Return the layout of a weight that is not cut; the next kernel is then not cut by rows."""
        if len(shape) > 1:
            self._columns = None
        return (None,) * len(shape)

    def _kernel(self, layer: str, shape: tuple[int, ...]) -> DimAxes:
        if len(shape) == 3 and layer in _PROJECTIONS:
            return self._first_that_fits(shape, [1])
        if len(shape) == 3 and layer == _BACK:
            return self._first_that_fits(shape, [0])
        if len(shape) != 2:
            return self._last_that_fits(shape)
        follows = self._columns == shape[0]
        layout = self._first_that_fits(shape, [0, 1] if follows else [1, 0])
        self._columns = shape[1] if layout[1] is not None else None
        return layout

    def _first_that_fits(self, shape: tuple[int, ...], dims: Sequence[int]) -> DimAxes:
        fits = [dim for dim in dims if self._axis is not None and shape[dim] and shape[dim] % self._size == 0]
        return tuple(self._axis if fits and dim == fits[0] else None for dim in range(len(shape)))

    def _last_that_fits(self, shape: tuple[int, ...]) -> DimAxes:
        return self._first_that_fits(shape, range(len(shape))[::-1])


class OutputLayouts:
    """The layouts of the layers' outputs.

    Example:
        >>> one = OutputLayouts(Mesh.parse("batch=2,model=2"), {".*/output": ("batch", "model", None)}, batch="batch")
        >>> one.of("block/normalization")
        'model'
    """

    def __init__(self, mesh: Mesh, given: Mapping[str, DimAxes], *, batch: str) -> None:
        self.given = dict(given)
        self._axes: dict[str, str] = {}
        self._paths: set[str] = set()
        self._matched: set[str] = set()
        for pattern, layout in self.given.items():
            padded: list[str | None] = [*layout, None, None]
            axis = padded[1]
            is_sequence = axis != batch and not any(padded[2:])
            if padded[0] not in (None, batch) or not is_sequence:
                raise ConfigError(
                    f"layout_map[{pattern!r}] is {layout}. An activation has its examples along {batch!r} in any case, "
                    "and may be cut along its second dim, the sequence, by another axis, as in "
                    f"({batch!r}, {next(iter(mesh.others(batch)), 'model')!r}, None). Between layers by columns and by "
                    "rows its last dim is in parts without a layout.",
                    name=f"layout_map[{pattern!r}]",
                    received=layout,
                )
            self._axes[pattern] = WHOLE if axis is None or mesh.size_of(axis) == 1 else axis

    @property
    def may_cut(self) -> bool:
        return any(axis != WHOLE for axis in self._axes.values())

    def of(self, path: str) -> str | None:
        """Return the axis along which a layer's output sequence is cut, `WHOLE`, or None if it is not known."""
        name = path + SUFFIX
        self._paths.add(name)
        pattern = pattern_of(self.given, name, "the activation")
        if pattern is None:
            return None
        self._matched.add(pattern)
        return self._axes[pattern]

    def require_all_matched(self, paths: Sequence[str]) -> None:
        """Raise if a pattern matches no layer."""
        for path in paths:
            self.of(path)
        lost = [pattern for pattern in self.given if pattern not in self._matched]
        if lost:
            raise ConfigError(
                f"the layouts name {', '.join(map(repr, lost))}, which matches the whole path of no activation. Those "
                "of layers in Sequential and functional models may be cut, where it is known what takes them: "
                f"{'; '.join(sorted(self._paths)) or 'none'}.",
                name="layout_map",
                received=", ".join(lost),
            )


def pattern_of(given: Mapping[str, object], path: str, what: str) -> str | None:
    if path in given:
        return path
    found = [pattern for pattern in given if re.fullmatch(pattern, path)]
    if len(found) > 1:
        raise ConfigError(
            f"{what} {path!r} is matched by {' and '.join(map(repr, found))}; one pattern may match it. "
            "Make them narrower.",
            name=path,
        )
    return found[0] if found else None
