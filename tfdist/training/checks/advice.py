"""Sentences about results that replicas cannot combine, each with an exact alternative."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfdist.compat.tensorflow.steps import gradient_uses
from tfdist.errors import cause_of

#: why one worker computes every batch
WHY = "something in its step is neither a mean over the examples of a batch nor their sum, and needs the whole batch"

_TOLD = {
    "gradient": "the loss of which {model}.train_step takes the gradients of {name}",
    "gradients of layers": "what a layer of yours makes of a batch, by the gradients of {name},",
    "loss": "the loss {name!r}",
    "values": "the loss {name!r}, which compares examples of a batch,",
    "added": "the loss that the layer {name!r} adds",
    "number": "the metric {name!r}",
    "metric": "what the metric {name!r} keeps",
    "log": "the log {name!r} of {model}.train_step or test_step",
    "count": "the whole number {name!r} in the logs of {model}.train_step or test_step",
    "state": "the state {name!r}",
}
_OF_LOSSES = (
    "Return a value per example and let Keras reduce them (a mask as sample_weight; "
    'reduction="mean_with_sample_weight" divides by its sum), or gather what the loss needs of the whole batch '
    '(tf.distribute.get_replica_context().all_gather). strategy.loss_reduction = "mean" says that it is meant so.'
)
_GATHERING = "(tf.distribute.get_replica_context().all_gather; while a model is built, that context is None)."
_OF_LAYERS = (
    "Let layers use what each example has by itself, as keras.layers.LayerNormalization does, statistics of the "
    f"whole batch by keras.layers.BatchNormalization(synchronized=True), or what they gather {_GATHERING}"
)
_WAYS = {
    "gradient": _OF_LOSSES,
    "loss": _OF_LOSSES,
    "values": _OF_LOSSES,
    "added": (
        "Let the layer add a mean or a sum over examples, or gather what the loss needs of the whole batch "
        f"{_GATHERING}"
    ),
    "gradients of layers": _OF_LAYERS,
    "number": "Count in a keras.Metric of your own whose variables are sums over examples, and divide in its result().",
    "metric": "Keep sums over examples in its variables, and divide in result().",
    "log": "Log a mean or a sum over examples, or the result of a metric.",
    "count": "Log a sum over examples, or the result of a metric.",
    "state": f"Keep a sum, a mean or a maximum over examples, or gather what the state is made of {_GATHERING}",
}
_OF_OUTPUTS = {
    "layers": _OF_LAYERS,
    "prediction": (
        "Compute what each example has by itself, and compare examples in what predict() returns, or gather them "
        "(tf.distribute.get_replica_context().all_gather)."
    ),
}
_OF_SEVERAL = ("gradient", "gradients of layers")
_SHOWN = 3

# by the type of an operation; the first that is found
_NORMS = {"L2Loss", "Square", "Sqrt", "Rsqrt", "EuclideanNorm", "Mul", "Pow", "Abs"}
_LIMITS = {"Minimum", "Maximum", "ClipByValue"}
_DECISIONS = {"Greater", "GreaterEqual", "Less", "LessEqual", "Equal", "NotEqual", "IsFinite", "IsNan", "IsInf"}

_SENTENCE = (
    "%s of %r %s its own gradients (by the operation %s) before %s. Each replica has the gradients of its own "
    "examples, so that is not what one device computes, even if the first batch shows no difference. To be exact, clip "
    "by the optimizer (global_clipnorm=, clipnorm= or clipvalue=), or let the step reduce its gradients first: "
    "gradients = tfdist.training.reduced_gradients(gradients)."
)
_DECIDED = (
    "%s (model %r) depends on a decision by one number of a batch (by the operation %s). Each replica decides by its "
    "own examples, so that is not what one device computes, even if the first batch shows no difference. Decide by the "
    'mean over all examples: loss = tf.distribute.get_replica_context().all_reduce("MEAN", loss).'
)


#: the way out that needs no other code, of what replicas compute from all rows unless XLA compiles the step
WITHOUT_XLA = " Without jit_compile=True it is computed from the rows of all replicas, which is exact."


class CannotTryError(Exception):
    """Raised if a step cannot be tried for a known reason, which is the text."""


class DecidesAloneError(Exception):
    """Raised if a replica may wait for gradients that another does not apply; the text is the deciding operation."""


def of(kind: str, name: str, model: Any) -> str:
    """Return the sentence about a value or a state that replicas cannot combine."""
    paths = name.split(", ")
    shown = _listed(paths)
    if kind in _OF_OUTPUTS:
        return (
            f"{'one of ' * (len(paths) > 1)}{shown} (model {model.name!r}) computes with other rows of a batch than an "
            "output's own. Each replica has its own rows alone, so this is not what one device computes. "
            f"{_OF_OUTPUTS[kind]}"
        )
    told = _TOLD[kind].format(model=type(model).__name__, name=shown if kind in _OF_SEVERAL else name)
    kept = "the first one's is logged" if kind == "count" else "these are averaged by their number"
    return (
        f"{told} (model {model.name!r}) is neither a mean over the examples of a batch nor their sum. Each "
        f"replica computes it of its own examples, and {kept}, which is not what one device computes. {_WAYS[kind]}"
    )


def of_decision(kind: str, name: str, model: Any, operation: str) -> str:
    """Return the sentence about a gradient or a loss that follows from a decision of each replica."""
    told = _TOLD[kind].format(model=type(model).__name__, name=_shown(kind, name))
    return _DECIDED % (told, model.name, operation)


def of_failure(kind: str, name: str, model: Any, error: Exception) -> str:
    """Return the sentence about a gradient or a loss of a step that fails on parts of a batch."""
    told = _TOLD[kind].format(model=type(model).__name__, name=_shown(kind, name))
    return (
        f"{told} (model {model.name!r}) cannot be computed from fewer rows of a batch ({_reason(error)}), and a "
        "replica has only some. If the code holds a batch size, take it from a tensor instead: tf.shape(x)[0]. If it "
        "compares rows, such as for the largest losses, each replica compares its own rows alone, which is not what "
        f"one device computes. {_WAYS[kind]}"
    )


def of_condition(model: Any, operation: str) -> str:
    """Return the sentence about gradients that are applied in a condition on a replica's own examples."""
    return (
        f"{type(model).__name__}.train_step applies gradients inside a condition on one number of a batch (by the "
        f"operation {operation}). Each replica decides by its own examples, and one that applies them would wait for "
        "ever for one that does not. Decide by the mean over all examples: loss = "
        'tf.distribute.get_replica_context().all_reduce("MEAN", loss).'
    )


def apart(model: Any, paths: Sequence[str]) -> str:
    """Return the sentence about weights that are no longer the same on all replicas."""
    return (
        f"the weights {_listed(paths)} (model {model.name!r}) differ between replicas after a step. The code of a "
        "step, a layer or an optimizer gives each replica other values: random numbers, or values of its own examples. "
        "So replicas train different models, and the first one is saved. Draw the same numbers on every replica "
        "(tf.random.stateless_normal with optimizer.iterations in its seed, or a keras.random.SeedGenerator of the "
        'optimizer), and assign means over all (tf.distribute.get_replica_context().all_reduce("MEAN", value)).'
    )


def of_statistics(model: Any, names: Sequence[str], part: str) -> str:
    """Return the sentence about layers that normalize by the rows of a part of a batch."""
    layers = f"{'layer' if len(names) == 1 else 'layers'} {_listed(names)}"
    does = "normalizes" if len(names) == 1 else "normalize"
    return (
        f"the {layers} (model {model.name!r}) {does} by the mean and variance of {part}. One device takes those of the "
        "whole batch, so the numbers differ from its numbers. With BatchNormalization(synchronized=True) they do not; "
        "LayerNormalization and GroupNormalization need no other rows. Leave it if that is what you want: "
        "tfdist docs large-batch."
    )


def of_blends(model: Any, names: Sequence[str], part: str) -> str:
    """Return the sentence about layers that blend the rows of a part of a batch."""
    return (
        f"each partner with which {_listed(names)} (model {model.name!r}) blends an example is drawn from {part}. One "
        "device draws it from the whole batch. For that, blend in the input: dataset.map(keras.layers.MixUp()). Leave "
        "it if partners from fewer examples are what you want."
    )


def _shown(kind: str, name: str) -> str:
    return _listed(name.split(", ")) if kind in _OF_SEVERAL else name


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


def untried(model: Any, error: Exception) -> str:
    """Return the sentence about a step that could not be tried on a few rows."""
    return (
        f"how the replicas of {model.name!r} put together what a step makes could not be tried on a few rows of a "
        f"batch ({_reason(error)}). Losses are taken for means over examples, and states for averages. Say what losses "
        'are: strategy.loss_reduction = "mean", or "sum". To add up gradients over several steps, pass '
        "gradient_accumulation_steps= to the optimizer."
    )


def _reason(error: Exception) -> str:
    """Return what an error says in one line; AutoGraph's begins with where it was raised, and is indented.

    Example:
        >>> _reason(ValueError('in user code:\\n\\n    File "a.py"\\n        f()\\n\\n    ValueError: It is 1.\\n'))
        'ValueError: It is 1'
    """
    if isinstance(error, CannotTryError):
        return str(error)
    kind = f"{type(error).__name__}: "
    return kind + cause_of(str(error)).removeprefix(kind)


def of_own_gradients(model: Any, values: Mapping[tuple[str, int], tuple[str, Any]]) -> dict[tuple[str, int], str]:
    """Return the sentence about a step for each value that is a nonlinear function of its own gradients.

    There is one sentence: on the first gradient among these values, or else on the first value.
    """
    found = gradient_uses.uses([value for _, value in values.values()])
    used = {key: use for key, use in zip(values, found, strict=True) if use is not None}
    if not used:
        return {}
    key = min(used, key=lambda key: key[0] != "gradient")
    step = f"{type(model).__name__}.train_step"
    sentence = _SENTENCE % (step, model.name, _does(used[key]), used[key], _before(key[0], values[key][0]))
    return dict.fromkeys(used, sentence)


def _does(use: str) -> str:
    if use in _NORMS:
        return "takes a norm of"
    if use in _LIMITS:
        return "limits"
    return "decides by" if use in _DECISIONS else "computes with"


def _before(kind: str, name: str) -> str:
    if kind == "gradient":
        return "they are applied"
    told = {"log": "it logs the result", "number": "a metric is given the result"}.get(kind, "a loss is made of them")
    return f"{told} ({name!r})" if name else told
