"""The application of a user's `decode` and `augment` to each example of a batch, and the handling of their errors.

A graph cannot catch an error, but a dataset can. A batch is a dataset of one element, followed by a second one that is
made without the faulty examples; the second is computed only if the first is an error.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.fetch import PAYLOAD
from tfdist.data.examples.joined_columns import ColumnFetcher
from tfdist.data.format.picture_decoding import cause_of
from tfdist.data.reading import tensor_columns
from tfdist.data.reading.element_roles import PAIR
from tfdist.errors import ConfigError, CorruptDataError

Features = dict[str, Any]
Function = Callable[..., Any]
_MOST_TRIED = 1000  # examples that cannot be decoded before it is said that none can

_logger = logging.getLogger(__name__)
_Ids = NDArray[np.int64]
_Seeds = NDArray[np.int32]
_one_by_one = tf.autograph.experimental.do_not_convert


def mapped(name: str, function: Function, found: Features, *more: tf.Tensor, is_last: bool) -> Features:
    """Apply a function to the features of each example of a batch; its result is checked before anything is read.

    The last function may return (x, y) or (x, y, weight) instead, which become the feature `PAIR`.
    """

    def spec_of_one(value: Any) -> Any:
        return tf.TensorSpec(value.shape[1:], value.dtype)

    def signature_of(out: Any) -> Any:
        rank = out.shape.rank
        is_list = rank and out.shape[0] is None and None not in out.shape[1:].as_list()
        return (
            tf.RaggedTensorSpec(out.shape, out.dtype, ragged_rank=0) if is_list else tf.TensorSpec(out.shape, out.dtype)
        )

    specs = [tf.nest.map_structure(spec_of_one, given) for given in (found, *more)]
    users: Any = tf.function(function)
    returned = users.get_concrete_function(*specs).structured_outputs
    graph = users
    if is_last and isinstance(returned, tuple) and len(returned) in (2, 3):

        def graph(*row: Any) -> Any:
            return {PAIR: dict(zip(("x", "y", "weight"), users(*row), strict=False))}

        returned = {PAIR: dict(zip(("x", "y", "weight"), returned, strict=False))}
    _need_features(name, returned, "(x, y), (x, y, weight) or " if is_last else "")
    signature = tf.nest.map_structure(signature_of, returned)
    return tf.map_fn(lambda row: graph(*row), (found, *more), fn_output_signature=signature)


def _need_features(name: str, returned: Any, more: str) -> None:
    if not isinstance(returned, Mapping):
        is_tensor = isinstance(returned, (tf.Tensor, tf.TypeSpec))
        what = "None" if returned is None else "one tensor" if is_tensor else f"a {type(returned).__name__}"
        what += f" of {len(returned)}" if isinstance(returned, tuple) else ""
        hint = " Is its `return` missing?" if returned is None else ""
        raise ConfigError(
            f"{name} returned {what}; it must return {more}a dict of the example's features: "
            f"{{**example, 'name': tensor}}, label and weight included.{hint}"
        )
    if not returned:
        raise ConfigError(f"{name} returned a dict without features; it must return those that `fit` is to have.")
    for feature, value in returned.get(PAIR, returned).items():
        if not isinstance(feature, str):
            raise ConfigError(f"{name} returned a feature called {feature!r}; a feature's name must be text.")
        for leaf in tf.nest.flatten(value, expand_composites=False):
            if not isinstance(leaf, (tf.Tensor, tf.TensorSpec)):
                _refuse(name, feature, leaf)


def _refuse(name: str, feature: str, leaf: Any) -> NoReturn:
    if leaf is None:
        what, way = "None", "Leave it out of the dict, or give it a value in every example."
    elif isinstance(leaf, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        what = "a RaggedTensor"
        way = "Pad it with to_tensor(); a list of any length is a plain tensor of one dimension."
    elif isinstance(leaf, (tf.SparseTensor, tf.SparseTensorSpec)):
        what, way = "a SparseTensor", "Make it dense: tf.sparse.to_dense(...)."
    else:
        what, way = f"{validation.shown(leaf)} ({type(leaf).__name__})", "Return a tensor, or what tf.constant takes."
    raise ConfigError(f"{name} returned {what} for the feature {feature!r}; it must be a dense tensor. {way}")


def either(first: Function, second: Function, arguments: tuple[Any, ...]) -> Any:
    """Return the result of a function of tensors; if the function fails, the result of another one."""
    given = tf.data.Dataset.from_tensors(arguments)
    tried = given.map(_one_by_one(first)).ignore_errors()
    return tried.concatenate(given.map(_one_by_one(second))).take(1).get_single_element()


class Search:
    """The search for the examples of a batch that cannot be decoded, one by one, and for their replacements."""

    def __init__(
        self, fetcher: ColumnFetcher, decode: Function | None, augment: Function | None, *, skip: bool
    ) -> None:
        self._fetcher = fetcher
        self._examples = fetcher.examples
        self._decode = decode
        self._augment = augment
        self._skip = skip
        self._reported: set[int] = set()
        self._stand_in: int | None = None

    def __call__(self, ids: tf.Tensor, seeds: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return numbers and seeds of the examples to read instead, and a float32 mask of the unchanged ones."""
        find = self._fetcher.failures.noted(self._found)
        found = tf.numpy_function(find, [ids, seeds], [tf.int64, tf.int32, tf.float32])
        ids, seeds, can = tensor_columns.shaped(found, [value.shape for value in (ids, seeds, ids)])
        return ids, seeds, can

    def _found(self, ids: _Ids, seeds: _Seeds) -> tuple[_Ids, _Seeds, NDArray[np.float32]]:
        problems = [self._problem(*row) for row in zip(ids.tolist(), seeds, strict=True)]
        bad = np.array([bool(problem) for problem in problems])
        if not bad.any():  # each on its own can: the batch fails again, for a reason that is not an example's
            return ids, seeds, np.ones(len(ids), np.float32)
        self._report({number: problem for number, problem in zip(ids.tolist(), problems, strict=True) if problem})
        good = np.flatnonzero(~bad)
        ids, seeds = ids.copy(), seeds.copy()
        if len(good):
            ids[bad], seeds[bad] = ids[good[0]], seeds[good[0]]
        else:
            ids[:], seeds[:] = self._any_good(int(ids[0]), seeds[0]), seeds[0]
        return ids, seeds, (~bad).astype(np.float32)

    def _problem(self, number: int, seed: Any) -> str:
        """Return the reason why an example cannot be decoded; empty if it can.

        Operations run one by one in this thread: a graph would wait for threads that wait for this one.
        """
        read, _ = self._fetcher(np.array([number]))  # says itself what is corrupt
        doing = "tf.io.parse_example"
        try:
            with tf.device("/cpu:0"):
                columns = {name: tf.constant(values) for name, values in read.items()}
                if PAYLOAD in columns:
                    columns = tensor_columns.parsed(self._examples.schema, columns[PAYLOAD])
                row = {name: value[0] for name, value in columns.items()}
                if self._decode is not None:
                    doing = "decode"
                    row = self._decode(row)
                if self._augment is not None:
                    doing = "augment"
                    self._augment(row, tf.constant(seed))
        except Exception as error:  # noqa: BLE001 - a function of the user's may raise anything
            return f"{doing} raised {type(error).__name__}: {cause_of(error)}"
        return ""

    def _report(self, problems: dict[int, str]) -> None:
        said = {}
        for number, problem in problems.items():
            shard, offset, _ = self._examples.locate(np.array([number]))
            file = self._examples.manifest.shards[int(shard[0])].file
            said[number] = f"example {number} cannot be decoded: {file}, byte {int(offset[0])}: {problem}"
        if not self._skip:
            more = f" (and {len(said) - 1} more in this batch)" if len(said) > 1 else ""
            url = self._examples.url
            raise CorruptDataError(
                f"{next(iter(said.values()))}{more}. `tfdist data verify --decode {url}` finds all pictures that "
                "cannot be decoded, `tfdist data repair --decode` takes them out; on_corrupt='skip' reads on without "
                "them."
            )
        for number, word in said.items():
            if number not in self._reported:
                self._reported.add(number)
                _logger.warning("%s. It counts with weight 0.", word)

    def _any_good(self, near: int, seed: Any) -> int:
        count = len(self._examples)
        steps = range(1, min(count, _MOST_TRIED))
        problem = ""
        for step in steps if self._stand_in is None else (self._stand_in - near, *steps):
            number = (near + step) % count
            problem = self._problem(number, seed)
            if not problem:
                self._stand_in = number
                return number
        raise CorruptDataError(
            f"no example of {self._examples.url} can be decoded, of {len(steps) + 1} that were tried; of the "
            f"last, {problem}.",
            name="decode",
            path=self._examples.url,
        )


class Searching:
    """A reader of batches of which a part may be no examples; `Search` finds those that are none."""

    parses = False

    def __init__(self, asked: tensor_columns.WhenAsked, search: Search) -> None:
        self._asked = asked
        self._search = search
        self.specs, self.examples = asked.specs, asked.examples

    def early(self, ids: _Ids) -> list[NDArray[Any]]:
        return self._asked.early(ids)

    def late(self, ids: tf.Tensor, found: list[tf.Tensor]) -> tensor_columns.Read:
        def without(ids: tf.Tensor) -> tensor_columns.Read:
            ids, _, can = self._search(ids, tf.zeros([tf.size(ids), 2], tf.int32))
            columns, sound = self._asked.late(ids, [])
            return columns, sound * can

        read: tensor_columns.Read = either(lambda ids: self._asked.late(ids, []), without, (ids,))
        return read
