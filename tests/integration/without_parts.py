"""Caches how tfdist draws parts of weights, in every process that is forked from this one.

For each weight that lies in parts it traces what the initializer does, and runs that for the key of the random numbers:
a tenth of a short training of a pipeline. This depends on the initializer with its seed, on the shape and on the dtype.
Tests of a process make the same models again and again.
"""

import functools
import json
from collections.abc import Sequence
from typing import Any

from tfdist.compat.keras import keras_variables
from tfdist.parallel import sharded_initializers

_numbers_of = sharded_initializers.numbers_of


@functools.lru_cache(maxsize=256)
def _made(kind: Any, config: str, shape: tuple[int, ...], dtype: str) -> Any:
    return _numbers_of(kind.from_config(json.loads(config)), shape, dtype)


def _kept(initializer: Any, shape: Sequence[int], dtype: str) -> Any:
    if not keras_variables.is_own_initializer(initializer):
        return _numbers_of(initializer, shape, dtype)
    config = initializer.get_config()
    if "seed" in config:
        config["seed"] = initializer.seed  # a drawn one, if none was given
    if not all(isinstance(value, int | float | str | None) for value in config.values()):
        return _numbers_of(initializer, shape, dtype)
    kind: Any = type(initializer)  # mypy takes no class for hashable
    return _made(kind, json.dumps(config, sort_keys=True), tuple(shape), dtype)


sharded_initializers.numbers_of = _kept
