"""The update of weights of which this process has a part: only the part is updated, as the whole would be.

An optimizer's variables have the layouts of their weights, so an update works in the part's shape. Norms and the check
for finite gradients go over all parts, each once, and a constraint gets the whole weight.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfdist.compat.keras import optimizer as keras_optimizer
from tfdist.compat.keras import sharded_optimizer
from tfdist.compat.tensorflow.meshes import sharded_variable
from tfdist.errors import UnsupportedError
from tfdist.gradients.reduction import norms, reducer


@contextlib.contextmanager
def updated(
    optimizer: Any, variables: Any, lying: Callable[[Any], Any] = sharded_variable.sharding_of
) -> Iterator[None]:
    """Let an optimizer update the parts of its variables inside."""
    weights = keras_optimizer.known_variables(optimizer) if variables is None else list(variables)
    parts = Parts(weights, lying)
    if not parts:
        yield
        return
    _require_possible(optimizer, weights, lying)
    slots = [slot for one in keras_optimizer.chain(optimizer) for slot in one.variables]
    averages = keras_optimizer.known_variables(optimizer)
    with (
        sharded_variable.local([*weights, *averages, *slots]),
        keras_optimizer.looking_at_parts(optimizer, clipped=parts.clipped, are_finite=parts.are_finite),
    ):
        yield


class Parts:
    """The layouts of an update's weights on the mesh."""

    def __init__(self, variables: Sequence[Any], lying: Callable[[Any], Any]) -> None:
        found = {id(variable): lying(variable) for variable in variables}
        self._shardings: Mapping[int, sharded_variable.Layout] = {
            key: one for key, one in found.items() if one is not None
        }

    def __bool__(self) -> bool:
        return bool(self._shardings)

    def clipped(self, optimizer: Any, gradients: list[Any], variables: Sequence[Any]) -> list[Any]:
        """Clip gradients by norms over all parts, as an optimizer clips by those of whole variables."""
        if not (optimizer.clipnorm or optimizer.global_clipnorm):
            return keras_optimizer.own_clip(optimizer, gradients)
        there = [variable for gradient, variable in zip(gradients, variables, strict=True) if gradient is not None]
        clipped = norms.clipped(
            gradients,
            lambda squares: self._totals(squares, there),
            clipnorm=optimizer.clipnorm,
            global_clipnorm=optimizer.global_clipnorm,
        )
        # Keras adds up rows of one index where it clips by the norm of all; elsewhere they stay apart
        if optimizer.clipnorm or isinstance(optimizer, reducer.ReducesItself):
            return clipped
        return [None if one is None else tf.convert_to_tensor(one) for one in clipped]

    def are_finite(self, gradients: list[Any]) -> tf.Tensor:
        """Return whether all gradients are finite, as a bool tensor that is equal on all members."""
        axes = {axis for one in self._shardings.values() for axis in one.axes}
        first = next(iter(self._shardings.values()))
        return norms.are_finite(gradients, lambda vector: first.total([vector], axes)[0])

    def _totals(self, squares: tf.Tensor, variables: Sequence[Any]) -> tf.Tensor:
        """Return the squares of whole gradients: each part's summed over its variable's axes."""
        totals = tf.unstack(squares, num=len(variables))
        for index, variable in enumerate(variables):
            if not getattr(self._shardings.get(id(variable)), "counts", True):  # another process has the same part
                totals[index] = tf.zeros_like(totals[index])
        groups: dict[tuple[str, ...], list[int]] = {}
        for index, variable in enumerate(variables):
            if id(variable) in self._shardings:
                groups.setdefault(self._shardings[id(variable)].axes, []).append(index)
        for axes, indices in groups.items():
            first = self._shardings[id(variables[indices[0]])]
            (summed,) = first.total([tf.stack([totals[index] for index in indices])], axes)
            for index, total in zip(indices, tf.unstack(summed, num=len(indices)), strict=True):
                totals[index] = total
        return tf.stack(totals)


def _require_possible(optimizer: Any, weights: Sequence[Any], lying: Callable[[Any], Any]) -> None:
    """Raise if an update may need more than its own part: a whole cut weight, or several weights."""
    found = {variable.path: lying(variable) for variable in weights}
    apart = [path for path, one in found.items() if one is not None]
    cut = next((path for path in apart if found[path].is_cut), None)
    for one in keras_optimizer.chain(optimizer):
        sharded_optimizer.require_update_step_alone(
            one,
            because=f"processes or devices update what they have of them by themselves, as of {apart[0]!r}",
            instead="a strategy that keeps weights whole",
        )
    for one in keras_optimizer.updating(optimizer):
        sharded_optimizer.require_no_generator(
            one,
            because="each process updates what it has of the weights, and would draw for that alone",
            instead="a strategy that keeps weights whole",
        )
        if not keras_optimizer.updates_elements(one):
            _require_whole(one, cut, apart[0])
    choices = reducer.choices_of(optimizer)
    if choices.compression is not None or choices.kind == "adasum":
        what = "compresses gradients" if choices.compression is not None else "combines gradients by Adasum"
        raise UnsupportedError(
            f"the optimizer {optimizer.name!r} {what}, which looks at whole gradients, and {(cut or apart[0])!r} is "
            "sharded over several processes or devices. Leave that out, or leave the weight whole."
        )


def _require_whole(optimizer: Any, cut: str | None, path: str) -> None:
    """Raise if a variable is cut, or if the optimizer keeps a variable for it in another shape."""
    name = type(optimizer).__name__
    if cut is not None:
        raise UnsupportedError(
            f"the optimizer {name} may look at the whole of a variable in its update, and {cut!r} is sharded over "
            "several processes or devices, each of which updates its own part. Use an optimizer that updates each "
            "element by itself (SGD, Adam, AdamW, RMSprop, Adagrad, ...), or leave that weight whole.",
            name=name,
            received=cut,
        )
    kept = [slot for slot in optimizer.variables if len(slot.shape) and sharded_variable.sharding_of(slot) is None]
    if sharded_optimizer.is_of_ones_own(optimizer):
        kept += sharded_optimizer.numbers_of(optimizer)
    if kept:
        raise UnsupportedError(
            f"the optimizer {name} keeps {kept[0].path!r} (shape {tuple(kept[0].shape)}), which has not the shape of a "
            f"variable, and each stage of a pipeline updates the variables that it has, such as {path!r}, by itself. "
            "Take an optimizer that keeps what has its variable's shape, as all of Keras' but Adafactor do; your own "
            "makes it by add_variable_from_reference.",
            name=name,
            received=kept[0].path,
        )
