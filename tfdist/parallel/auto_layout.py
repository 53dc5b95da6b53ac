"""Layouts that follow from the paths and shapes of weights, in the order in which they are made. Loads no TensorFlow.

By columns, then by rows, as Megatron has them: between the two, activations stay in parts.
"""

from collections.abc import Sequence

Layout = tuple[str | None, ...]

_PROJECTIONS = ("query", "key", "value", "gate")
_BACK = "attention_output"


class ProposedLayouts:
    """What `layout_map="auto"` gives to each weight.

    - a dense kernel lies by columns; one behind it that has as many rows as it has columns, by rows
    - the projections of an attention lie by heads
    - a table lies by its rows, the words; or by its columns, if the axis does not divide the words
    - the kernel of a convolution lies by filters
    - a bias lies as the dims of its kernel to which it is added
    - of other weights with two dims and more the last dim is cut that the axis divides
    - others are whole: statistics, scales, and what no axis divides

    Example:
        >>> proposed = ProposedLayouts("model", 2)
        >>> proposed.of("up/kernel", (8, 32)), proposed.of("up/bias", (32,)), proposed.of("down/kernel", (32, 8))
        ((None, 'model'), ('model',), ('model', None))
        >>> proposed.of("attention/query/kernel", (8, 4, 2)), proposed.of("normalization/gamma", (8,))
        ((None, 'model', None), (None,))

    Source: M. Shoeybi et al., "Megatron-LM: Training Multi-Billion Parameter Language Models Using Model Parallelism",
    2019. Theirs follow from the author's knowledge of the model; these from names and sizes, so that a layer may lie by
    rows behind one that it does not follow, which costs a cut and is right.
    """

    def __init__(self, axis: str | None, size: int) -> None:
        self._axis = axis
        self._size = size
        self._columns: int | None = None  # of the dense kernel before, if it lies by columns
        self._kernels: dict[str, tuple[tuple[int, ...], Layout]] = {}

    def of(self, path: str, shape: Sequence[int]) -> Layout:
        """Return the axis of each dim of a weight that is made."""
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

    def whole(self, shape: Sequence[int]) -> Layout:
        """Return the layout of a weight that is not cut; a kernel behind it follows none by columns."""
        if len(shape) > 1:
            self._columns = None
        return (None,) * len(shape)

    def _kernel(self, layer: str, shape: tuple[int, ...]) -> Layout:
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

    def _first_that_fits(self, shape: tuple[int, ...], dims: Sequence[int]) -> Layout:
        fits = [dim for dim in dims if self._axis is not None and shape[dim] and shape[dim] % self._size == 0]
        return tuple(self._axis if fits and dim == fits[0] else None for dim in range(len(shape)))

    def _last_that_fits(self, shape: tuple[int, ...]) -> Layout:
        return self._first_that_fits(shape, range(len(shape))[::-1])
