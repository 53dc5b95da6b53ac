"""Select activations that are cut along their sequence, by the path of their layer. Loads no TensorFlow.

Keras' `LayoutMap` names an activation as its layer's path with ``/output`` behind it, and gives it a layout as it does
a weight: here the axis of the examples or None, then the axis along which the sequence is cut.
"""

import re
from collections.abc import Mapping, Sequence

from tfdist.cluster.mesh import Mesh
from tfdist.errors import ConfigError
from tfdist.parallel.auto_layout import Layout

#: what stands behind a layer's path
SUFFIX = "/output"
#: the layout of what is to be whole
WHOLE = ""


class OutputLayouts:
    """The layouts of what layers return.

    Example:
        >>> one = OutputLayouts(Mesh.parse("batch=2,model=2"), {".*/output": ("batch", "model", None)}, batch="batch")
        >>> one.of("block/normalization")
        'model'
    """

    def __init__(self, mesh: Mesh, given: Mapping[str, Layout], *, batch: str) -> None:
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
        """Whether some activation may be cut."""
        return any(axis != WHOLE for axis in self._axes.values())

    def of(self, path: str) -> str | None:
        """Return the axis along which a layer's output sequence is cut, `WHOLE`, or None where it is not known."""
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
    """Return the pattern that matches a path, or None."""
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
