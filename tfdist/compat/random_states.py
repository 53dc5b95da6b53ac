"""The states of the random generators that a training program may use outside its model.

Private names, read in TensorFlow 2.21.0: `context()._rng`, which seeds eager operations once a seed is set;
`stateful_random_ops.global_generator`, which `get_global_generator` would create; `random_seed.DEFAULT_GRAPH_SEED`,
which stands for the global seed while there is none.
"""

import random
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorflow.python.eager import context
from tensorflow.python.framework import random_seed
from tensorflow.python.ops import stateful_random_ops

from tfdist.compat.keras import keras_trainer

_AGREED = "tfdist_agreed_seed"  # attribute of the eager generator, which TensorFlow makes anew when a seed is set
_PYTHON, _NUMPY, _EAGER, _GENERATOR, _KERAS = "python", "numpy", "tensorflow", "generator", "keras"


def global_seed() -> int | None:
    """Return the seed set by `tf.random.set_seed`, or None."""
    return context.global_seed()


def seed_the_unseeded(seed: int) -> None:
    """Seed the eager operations that have no seed, such as `Dataset.shuffle`; those that have one draw as before."""
    tf.random.set_seed(random_seed.DEFAULT_GRAPH_SEED)
    eager = _eager()
    assert eager is not None, "TensorFlow keeps its eager seeds elsewhere"
    eager.seed(seed)
    vars(eager)[_AGREED] = seed


def is_seeded() -> bool:
    """Return whether the script has set a seed, and not only the workers among themselves."""
    eager = _eager()
    return global_seed() is not None and (eager is None or _AGREED not in vars(eager))


def seed_of_shuffles() -> int | None:
    """Return the seed from which shuffles without one of their own draw: the script's or an agreed one, or None."""
    seed, eager = global_seed(), _eager()
    return seed if seed is None or eager is None else vars(eager).get(_AGREED, seed)


def capture() -> dict[str, NDArray[Any]]:
    """Return all states that exist, by name, for `restore`."""
    states = {**of_python(), _KERAS: _value(_keras())}
    eager = _eager()
    if eager is not None:
        states[_EAGER] = _words(eager.getstate())
    if stateful_random_ops.global_generator is not None:
        states[_GENERATOR] = _value(stateful_random_ops.global_generator.state)
    return states


def variables() -> list[Any]:
    """Return the variables among the states that exist."""
    made = stateful_random_ops.global_generator
    return [_keras(), *([] if made is None else [made.state])]


def of_python() -> dict[str, NDArray[Any]]:
    """Return the states of the generators that any Python code may draw from: that of `random`, and of NumPy."""
    return {_PYTHON: _words(random.getstate()), _NUMPY: _of_numpy()}


def after_shuffle(states: dict[str, NDArray[Any]], count: int) -> dict[str, NDArray[Any]]:
    """Return these states after `random.shuffle` has shuffled so many items."""
    generator = random.Random()
    generator.setstate(_from_words(states[_PYTHON]))
    generator.shuffle(list(range(count)))
    return {**states, _PYTHON: _words(generator.getstate())}


def restore(states: dict[str, NDArray[Any]]) -> None:
    if _PYTHON in states:
        random.setstate(_from_words(states[_PYTHON]))
    if _NUMPY in states:
        _to_numpy(states[_NUMPY])
    if _KERAS in states:
        _keras().assign(states[_KERAS])
    eager = _eager()
    if _EAGER in states and eager is not None:
        eager.setstate(_from_words(states[_EAGER]))
    if _GENERATOR in states:
        tf.random.get_global_generator().state.assign(states[_GENERATOR])


def _eager() -> random.Random | None:
    return getattr(context.context(), "_rng", None)  # it is there once a seed was set


def _keras() -> Any:
    return keras_trainer.global_seed_generator().state


def _value(variable: Any) -> NDArray[Any]:
    return np.asarray(tf.convert_to_tensor(getattr(variable, "value", variable)))


def _words(state: Any) -> NDArray[np.float64]:
    """Return Python's generator: version, 624 words of 32 bits and a position, half of a pair of normal numbers."""
    version, words, spare = state
    return np.array([version, *words, np.nan if spare is None else spare], np.float64)  # 32 bits fit into a float64


def _from_words(array: NDArray[np.float64]) -> Any:
    version, *words, spare = array.tolist()
    return int(version), tuple(map(int, words)), None if np.isnan(spare) else spare


def _of_numpy() -> NDArray[np.float64]:
    state: Any = np.random.get_state(legacy=False)
    inner = state["state"]
    return np.array([*inner["key"], inner["pos"], state["has_gauss"], state["gauss"]], np.float64)


def _to_numpy(array: NDArray[np.float64]) -> None:
    *key, position, has_gauss, gauss = array.tolist()
    np.random.set_state(
        {
            "bit_generator": "MT19937",
            "state": {"key": np.array(key, np.uint32), "pos": int(position)},
            "has_gauss": int(has_gauss),
            "gauss": gauss,
        }
    )
