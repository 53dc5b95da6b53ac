"""Descriptions of models of the ecosystem and of their training; `rows.py` makes rows of a matrix from them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: rows of three batches, the last of them partial
ROWS, BATCH = 29, 12
#: the largest difference that counts as equal, relative to max(1, |value|), as in `tfdist verify`
TOLERANCE, FLOAT16, BFLOAT16 = 1e-5, 2e-3, 1e-2

Inputs = Any
Examples = tuple[Inputs, Any, np.ndarray | None]


@dataclass(frozen=True, kw_only=True)
class Way:
    """A way to train a model; by default, in plain float32.

    Attributes:
        policy: the dtype policy while the model is made.
        jit_compile: whether XLA compiles the step.
        compression: the codec of `DistributedOptimizer`, or None for the plain optimizer.
        tolerance: the largest difference that counts as equal.
    """

    policy: str = "float32"
    jit_compile: bool = False
    compression: str | None = None
    tolerance: float = TOLERANCE


WAYS: Mapping[str, Way] = {
    "float32": Way(),
    # deep models with batch normalization make large differences of roundings: in float64 they stay below the tolerance
    "float64": Way(policy="float64"),
    "xla": Way(jit_compile=True),
    "mixed_float16": Way(policy="mixed_float16", tolerance=FLOAT16),
    "mixed_bfloat16": Way(policy="mixed_bfloat16", tolerance=BFLOAT16),
    "compressed": Way(compression="float16", tolerance=FLOAT16),
}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A model of the ecosystem.

    Attributes:
        name: what the table calls it.
        package: the distribution that builds it.
        summary: one line.
        make: builds the model; it runs in the scope of the strategy.
        examples: given a generator and a number of rows, inputs, targets and weights of examples or None.
        loss: makes the loss.
        options: more arguments of `compile`, made anew for each run.
        optimizer: makes the optimizer.
        ways: names of `WAYS`; each is a row.
    """

    name: str
    package: str
    summary: str
    make: Callable[[], Any]
    examples: Callable[[np.random.Generator, int], Examples]
    loss: Callable[[], Any]
    optimizer: Callable[[], Any]
    options: Callable[[], Mapping[str, Any]] = field(default=dict)
    ways: tuple[str, ...] = ("float32",)
