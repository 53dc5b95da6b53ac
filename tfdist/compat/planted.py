"""State that tfdist keeps with an object of Keras: one typed record per object, in the object's own dictionary.

A record ends with its object, as the object's graph does, and no other value is planted. Methods that one object gets
of its own are set where they are made.
"""

import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

_NAME = "_tfdist"


@dataclass
class ModelState:
    """The strategy that a model trains under, and facts about its steps and calls."""

    strategy: Any = None  # that has recognized the model
    logs_are_metrics: bool = False  # of the step that was traced last, over all replicas
    graphs: list[Any] = field(default_factory=list)  # of training steps that were traced: weak references
    metrics_were_reset: bool = False  # since the last step
    last_logs: Any = None  # of the last step, of training or of testing
    calls: list[ExitStack] | None = None  # of `fit`, `evaluate` and `predict` that run; None: they are not watched
    said: set[str] = field(default_factory=set)  # warnings, each of which is said once
    local_steps: Any = None  # of a strategy whose workers meet seldom
    division: tuple[Any, Any] | None = None  # the strategy of a pipeline, and how it has cut the model

    def live_graphs(self) -> list[Any]:
        """Return the graphs of traced training steps that still exist."""
        return [graph for one in self.graphs if (graph := one()) is not None]


@dataclass
class MetricState:
    """Flags that say which of a metric's updates are wrapped."""

    ignores_weights: bool = False
    scales_weights: bool = False


@dataclass
class IteratorState:
    """The iteration that was entered in its middle, and the batches that an earlier process has trained on."""

    entered: Any = None
    batches: int = 0


def in_place_of(method: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that an object gets in the place of a method; AutoGraph leaves it as it is if it left that.

    AutoGraph converts a `train_step` that is a `tf.function`, and what it calls, but nothing of Keras. To convert what
    an update calls would take seconds.
    """
    if not method.__module__.startswith(("keras.src.", "tfdist.")):
        return function
    if isinstance(function, functools.partial):
        return functools.partial(in_place_of(method, function.func), *function.args, **function.keywords)
    return tf.autograph.experimental.do_not_convert(function)


def of_model(model: Any) -> ModelState:
    state: ModelState = vars(model).setdefault(_NAME, ModelState())
    return state


def of_metric(metric: Any) -> MetricState:
    state: MetricState = vars(metric).setdefault(_NAME, MetricState())
    return state


def of_iterator(iterator: Any) -> IteratorState:
    state: IteratorState = vars(iterator).setdefault(_NAME, IteratorState())
    return state
