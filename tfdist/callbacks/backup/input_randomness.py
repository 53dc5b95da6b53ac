"""The random numbers that an input which is replayed draws from the generators of Python and NumPy.

The input shares them with the rest of the script, so what it draws depends on what others have drawn before. A backup
has their states at the beginning of the epoch that is running, and at the calls of a `PyDataset` at which others had
drawn. Replayed from these, the input draws what it drew, and epochs need not be read for it.
"""

import hashlib
import random
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

from tfdist.compat import random_states
from tfdist.compat.keras import replayed_input
from tfdist.compat.keras.epochs import Fit

INPUT, _BEGIN = "input", "begin"  # of the names of arrays
_States = dict[str, NDArray[Any]]


class InputRandomness:
    """The states of random generators during a `fit`; `reading_matters`: whether past epochs have to be read again."""

    def __init__(self, fit: Fit) -> None:
        self.reading_matters = False
        self._source = replayed_input.python_dataset(fit)
        self._shuffles = replayed_input.shuffled_batches(fit)
        self._is_early, self._is_anew = replayed_input.begins_early(fit), replayed_input.begins_anew(fit)
        self._has_calls = self._source is not None and any(
            getattr(type(self._source), name) is not getattr(keras.utils.PyDataset, name)
            for name in ("on_epoch_begin", "on_epoch_end")
        )
        self._calls, self._at_calls = 0, dict[int, _States]()
        self._left: _States = {}  # behind the last call
        self._own: list[Any] | None = None
        self._begin: _States = {}  # of the epoch
        self._first: _States = {}  # of the script, when `fit` began
        self._held: _States = {}
        self._base: _States = {}  # from which the steps are drawn that are replayed
        self._is_replayed = self._is_entered = False
        replayed_input.follow(fit, self)

    # While training

    def call(self, method: Callable[[], None], *, begins: bool) -> None:
        """Call a method of a `PyDataset`, which may draw."""
        number, self._calls = self._calls, self._calls + 1
        if self._is_replayed:
            random_states.restore(self._at_calls.get(number) or {})
        elif self._has_calls and not _same(now := random_states.of_python(), self._left):
            self._at_calls[number] = now
        if begins and self._is_early:
            if self._is_entered:
                random_states.restore(self._begin)
            elif not self._is_replayed:
                self._begin = random_states.of_python()
        if not begins and not self._is_replayed:
            self.reading_matters |= self._own is not None and _own_states(self._source) != self._own
        method()
        self._left = random_states.of_python()
        self._own = _own_states(self._source) if begins else None

    def epoch_begins(self) -> None:
        """Note that the first step of an epoch is about to take its batch."""
        if self._is_anew and not self._is_early:
            self._begin = random_states.of_python()

    def arrays(self) -> _States:
        """Return what a backup needs, by name."""
        states: dict[str, _States] = {_BEGIN: self._begin}
        states.update((str(number), found) for number, found in self._at_calls.items())
        return {f"{INPUT}/{key}/{name}": array for key, found in states.items() for name, array in found.items()}

    # When training resumes

    def remember(self) -> None:
        """Note the states of the script, before those of a backup take their place."""
        self._first = random_states.capture()

    def digest(self) -> int:
        """Return a number that differs between workers if what they remember does."""
        states = [self._first[name].tobytes() for name in sorted(random_states.of_python())]
        return int(hashlib.sha256(b"".join(states)).hexdigest()[:15], 16)

    def move_to(self, arrays: Mapping[str, NDArray[Any]], *, reading_matters: bool) -> None:
        """Let the replay that follows draw what was drawn."""
        self.reading_matters = reading_matters
        for full, array in arrays.items():
            kind, _, tail = full.partition("/")
            if kind == INPUT:
                key, name = tail.split("/")
                into = self._begin if key == _BEGIN else self._at_calls.setdefault(int(key), {})
                into[name] = np.array(array)

    def replay_begins(self) -> None:
        self._held = random_states.capture()
        random_states.restore(self._first)
        self._base = random_states.of_python()
        self._calls, self._is_replayed = 0, True

    def enter(self, *, step: int) -> None:
        """Enter the present epoch, of which so many steps are replayed."""
        self._is_entered = step > 0
        if not step and self._is_anew:
            random_states.restore(self._held)
            self._is_replayed, self._base = False, {}

    def before_first_batch(self) -> None:
        if self._is_anew and not self._is_early:
            random_states.restore(self._begin)
        if self._is_anew:
            self._base = self._begin or random_states.of_python()

    def replay_ends(self) -> None:
        """Restore all states but those from which the input draws: it has read ahead, no step knows how far."""
        if self._base:
            now, kept = random_states.of_python(), dict(self._held)
            shuffled = random_states.after_shuffle(self._base, self._shuffles) if self._shuffles else self._base
            for name, state in now.items():
                if not any(np.array_equal(state, one[name], equal_nan=True) for one in (self._base, shuffled)):
                    del kept[name]
            random_states.restore(kept)
        self._is_replayed = self._is_entered = False


def _same(one: _States, other: _States) -> bool:
    return one.keys() == other.keys() and all(np.array_equal(one[key], other[key], equal_nan=True) for key in one)


def _own_states(source: Any) -> list[Any]:
    """Return the attributes of an object that reading may change and that are quickly compared."""
    found: list[Any] = []
    for name, value in sorted(vars(source).items()):
        if isinstance(value, np.random.Generator):
            found.append((name, repr(value.bit_generator.state)))
        elif isinstance(value, np.random.RandomState):
            found.append((name, repr(value.get_state())))
        elif isinstance(value, random.Random):
            found.append((name, value.getstate()))
        elif value is None or isinstance(value, (bool, int, float, str)):
            found.append((name, value))
    return found
