"""The description of a model's layouts: its weights, their places, and their bytes on each device."""

import math
import sys
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from tfdist.compat.keras import keras_trainer
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.gradients.sharding import slot_saving
from tfdist.validation import counted


@dataclass(frozen=True, kw_only=True)
class WeightPlace:
    """The layout of one weight.

    Attributes:
        path: the path of the weight.
        shape: the shape of the whole weight.
        layout: for each dim, the axis of the mesh along which it is cut, or None.
        local_shape: the shape of the part on each device.
        bytes: the size of that part, in bytes.
        whole_bytes: the size of the whole weight, in bytes.
    """

    path: str
    shape: tuple[int, ...]
    layout: tuple[str | None, ...]
    local_shape: tuple[int, ...]
    bytes: int
    whole_bytes: int


def places(model: keras.Model) -> list[WeightPlace]:
    """Return the layouts of a model's weights, in the model's order.

    Args:
        model: a built model.

    Example:
        >>> [place.bytes for place in places(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))]
        [24, 8]
    """
    return [_place(weight) for weight in model.weights]


def describe(model: keras.Model) -> None:
    """Print a table of a model's weights: path, shape, layout, and bytes on each device.

    The sums stand below, also for the optimizers' variables. Under a pipeline each stage has a line with the layers
    that begin its parts, the number of its calls of layers, and the bytes of its weights.

    Args:
        model: a built model, on one device or under any strategy.

    Example:
        >>> inputs = keras.Input((3,))
        >>> describe(keras.Model(inputs, keras.layers.Dense(2, name="out")(inputs)))
        weight       shape   layout        bytes on each device
        out/kernel   (3, 2)  (None, None)  24
        out/bias     (2,)    (None,)       8
        all weights          of 32 bytes   32
    """
    rows = [("weight", "shape", "layout", "bytes on each device")]
    found = places(model)
    rows += [(one.path, str(one.shape), str(one.layout), f"{one.bytes:,}") for one in found]
    slots = [_place(one) for optimizer in keras_trainer.optimizers(model) for one in optimizer.variables]
    for name, summed in (("weights", found), ("optimizer", slots)):
        if summed:
            whole = sum(one.whole_bytes for one in summed)
            rows.append((f"all {name}", "", f"of {whole:,} bytes", f"{sum(one.bytes for one in summed):,}"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(cell.ljust(n) for cell, n in zip(row, widths, strict=False)), row[3]]) for row in rows]
    sys.stdout.write("\n".join([*lines, *_stages(model)]) + "\n")


def _stages(model: keras.Model) -> list[str]:
    division_of = getattr(model.distribute_strategy, "division_of", None)
    if division_of is None:
        return []
    division, stages = division_of(model), model.distribute_strategy.mesh.size_of("pipeline")
    lines = []
    for stage in range(stages):
        parts = [division.calls_of(part) for part in range(stage, division.parts, stages)]
        variables = [v for number in range(stage, division.parts, stages) for v in division.variables_of(number)]
        unique = {id(variable): _place(variable).whole_bytes for variable in variables}
        begins = ", ".join(calls[0].name if calls else "the loss" for calls in parts)
        calls = counted(sum(map(len, parts)), "call")
        lines.append(f"stage {stage} begins with {begins}: {calls}, {sum(unique.values()):,} bytes")
    return lines


def _place(variable: Any) -> WeightPlace:
    sharding, part = sharded_variable.sharding_of(variable), slot_saving.part_of(variable)
    shape = tuple(int(size) for size in (variable.shape if part is None else part.whole))
    layout = (None,) * len(shape) if sharding is None else sharding.layout
    local = shape if sharding is None else sharding.local_shape
    if part is not None:  # of what an optimizer keeps, a stretch of elements, or all on one worker
        local = tuple(part.shape)
    size = tf.as_dtype(variable.dtype).size
    return WeightPlace(
        path=variable.path,
        shape=shape,
        layout=layout,
        local_shape=local,
        bytes=math.prod(local) * size,
        whole_bytes=math.prod(shape) * size,
    )
