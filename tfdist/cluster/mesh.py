"""A mesh: the devices of a job in a grid of named axes, such as ``batch=2,model=2``.

Ranks count along the last axis first, so its members are neighbours: put the axis with most communication there. A
process has one device, or the same number of neighbours as every other.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError

_WRITE = "Write one as batch=2,model=2"


@dataclass(frozen=True)
class Mesh:
    """Named axes, and the number of devices along each.

    Example:
        >>> mesh = Mesh((("batch", 2), ("model", 2)))
        >>> mesh.size, mesh.coordinates(2), mesh.group(2, ["model"])
        (4, {'batch': 1, 'model': 0}, (2, 3))
    """

    axes: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.axes, tuple) or not all(
            isinstance(axis, tuple) and len(axis) == 2 for axis in self.axes
        ):
            required = 'a tuple of pairs, such as (("batch", 2), ("model", 2)).'
            raise validation.mismatch("axes", self.axes, required, kind=ConfigTypeError)
        if not self.axes:
            raise ConfigError(f"the mesh has no axis; it must have one at least. {_WRITE}.")
        for name, size in self.axes:
            if not isinstance(name, str) or not name.isidentifier():
                raise ConfigError(
                    f"an axis of the mesh is named {name!r}; it must be a plain word. {_WRITE}.",
                    name="mesh",
                    received=name,
                )
            validation.integer(f"the size of the axis {name!r}", size, minimum=1)
        if len(set(self.names)) < len(self.names):
            raise ConfigError(
                f"the mesh has the axes {', '.join(self.names)}; each name may be there once.",
                name="mesh",
                received=", ".join(self.names),
            )

    @classmethod
    def of(cls, names: Sequence[str], shape: Sequence[int]) -> "Mesh":
        """Return the mesh of these names and sizes."""
        if len(names) != len(shape):
            raise ConfigError(f"the mesh has the names {list(names)} and the sizes {list(shape)}; give one for each.")
        sizes = [
            validation.integer(f"the size of the axis {name!r}", size) for name, size in zip(names, shape, strict=True)
        ]
        return cls(tuple(zip(names, sizes, strict=True)))

    @classmethod
    def parse(cls, text: str, *, name: str = "mesh") -> "Mesh":
        """Return the mesh that a text describes."""
        axes = []
        for entry in validation.text(name, text, hint=f"{_WRITE}.").split(","):
            axis, equals, size = (part.strip() for part in entry.partition("="))
            if not equals or not axis or not size.isdecimal():
                raise ConfigError(
                    f"{name} is {text!r}, and {entry.strip()!r} is not an axis with a size. {_WRITE}.",
                    name=name,
                    received=text,
                )
            axes.append((axis, int(size)))
        return cls(tuple(axes))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.axes)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(size for _, size in self.axes)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    def size_of(self, axis: str) -> int:
        """Return the number of devices along an axis."""
        return dict(self.axes)[self.require(axis)]

    def require(self, axis: str) -> str:
        """Check the name of an axis, and return it."""
        return str(validation.one_of("an axis", axis, self.names, hint=f"The mesh is {self}."))

    def others(self, axis: str) -> tuple[str, ...]:
        """Return the names of all axes but one."""
        self.require(axis)
        return tuple(name for name in self.names if name != axis)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the position of a device along each axis."""
        validation.integer("rank", rank, minimum=0, maximum=self.size - 1)
        found: dict[str, int] = {}
        for name, size in reversed(self.axes):
            rank, found[name] = divmod(rank, size)
        return {name: found[name] for name in self.names}

    def rank(self, coordinates: Mapping[str, int]) -> int:
        """Return the rank of the device at these coordinates."""
        rank = 0
        for name, size in self.axes:
            rank = rank * size + validation.integer(name, coordinates[name], minimum=0, maximum=size - 1)
        return rank

    def group(self, rank: int, axes: Iterable[str]) -> tuple[int, ...]:
        """Return the ranks at the position of ``rank`` along every axis but these, in rising order."""
        free = {self.require(axis) for axis in axes}
        own = self.coordinates(rank)
        ranges = [range(size) if name in free else [own[name]] for name, size in self.axes]
        return tuple(self.rank(dict(zip(self.names, place, strict=True))) for place in itertools.product(*ranges))

    def groups(self, axes: Iterable[str]) -> list[tuple[int, ...]]:
        """Return the groups of all ranks along these axes, equal on every process.

        Example:
            >>> Mesh.parse("batch=2,model=2").groups(["batch"])
            [(0, 2), (1, 3)]
        """
        along, found, seen = list(axes), list[tuple[int, ...]](), set[int]()
        for rank in range(self.size):
            if rank not in seen:
                found.append(self.group(rank, along))
                seen.update(found[-1])
        return found

    def devices_of_each(self, processes: int, what: str) -> int:
        """Return the number of devices of each process, one for each place of the mesh."""
        if self.size % processes:
            raise ConfigError(
                f"the mesh {self} has {self.size} places, and there {'is' if processes == 1 else 'are'} "
                f"{validation.counted(processes, 'process', 'processes')} ({what}). Make the sizes of the axes "
                "multiply to the number of processes, or to that of the devices of all of them.",
                name="mesh",
                received=str(self),
            )
        return self.size // processes

    def require_size(self, processes: int, devices: int, what: str) -> None:
        if processes * devices != self.size:
            raise ConfigError(
                f"the mesh {self} has {self.size} places, and {what} gives "
                f"{validation.counted(processes, 'process', 'processes')} of {validation.counted(devices, 'device')}. "
                f"Start {self.size} processes (tfdist run -n {self.size}), one with as many devices (tfdist run "
                f"--replicas-per-worker {self.size}), or numbers that multiply to that.",
                name="mesh",
                received=str(self),
            )

    def between_processes(self, devices: int, *, divisible: str) -> "Mesh":
        """Return the mesh of the processes, each of which has the devices along the last axes.

        Example:
            >>> mesh = Mesh.parse("batch=4,model=2")
            >>> [str(mesh.between_processes(devices, divisible="batch")) for devices in (1, 2, 4)]
            ['batch=4,model=2', 'batch=4,model=1', 'batch=2,model=1']
        """
        left, sizes = devices, []
        for name, size in reversed(self.axes):
            near = math.gcd(left, size)
            if near not in ((1, left, size) if name == divisible else (1, size)) or (
                near == 1 and left > 1 and size > 1
            ):
                behind = math.prod(self.shape[self.names.index(name) :])
                raise ConfigError(
                    f"the mesh is {self} and a process has {devices} devices, so that of the {size} places along the "
                    f"axis {name!r} some would lie in a process and others in others. Give each process 1 device, or "
                    f"a multiple of {behind}, or put axes into another order.",
                    name="mesh",
                    received=str(self),
                )
            sizes.append((name, size // near))
            left //= near
        return Mesh(tuple(reversed(sizes)))

    def __str__(self) -> str:
        return ",".join(f"{name}={size}" for name, size in self.axes)


def of(given: Any) -> Mesh:
    """Return the mesh for a `Mesh`, a text, a dictionary, or a mesh of Keras."""
    if isinstance(given, Mesh):
        return given
    if isinstance(given, str):
        return Mesh.parse(given)
    if isinstance(given, Mapping):
        return Mesh.of(list(given), list(given.values()))
    if hasattr(given, "axis_names") and hasattr(given, "shape"):
        return Mesh.of(list(given.axis_names), list(given.shape))
    raise ConfigTypeError(
        f"mesh is {validation.shown(given)} ({type(given).__name__}); it must be a text such as 'batch=2,model=2', a "
        "dictionary of sizes, or a keras.distribution.DeviceMesh.",
        name="mesh",
        received=validation.shown(given),
    )
