"""Keys of reductions in a function, which follow from all that it has reduced before.

So operations of workers that run different functions never meet. Eagerly all have one key, and the backend reports
workers that reduce different things at once.
"""

import hashlib
import weakref
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

#: the key of all that is reduced outside of functions
EAGER = "eager"

_of_graph: "weakref.WeakKeyDictionary[Any, dict[int, Signature]]" = weakref.WeakKeyDictionary()


class Signature:
    """The collectives of one traced function so far, and a digest of them, which names the next one.

    Workers that have traced the same up to here have equal names; those whose functions differ never meet.
    """

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._hash = hashlib.blake2b(digest_size=8)

    def add(self, entry: str) -> str:
        """Append a collective and return the digest up to and with it, 16 hexadecimal digits."""
        self.entries.append(entry)
        self._hash.update(entry.encode() + b"\n")
        return self._hash.hexdigest()

    @property
    def digest(self) -> int:
        """64 bits that are equal for equal entries, as a signed integer."""
        return int.from_bytes(self._hash.digest(), "little", signed=True)


def first_difference(mine: list[str], theirs: list[str]) -> tuple[int, str, str]:
    """Return where two lists of entries differ first, and what each has there ("nothing more" after its end)."""
    length = max(len(mine), len(theirs))
    pad = "nothing more"
    pairs = list(zip(mine + [pad] * (length - len(mine)), theirs + [pad] * (length - len(theirs)), strict=True))
    position = next((index for index, (a, b) in enumerate(pairs) if a != b), length)
    return (position, *pairs[position]) if position < length else (position, pad, pad)


def current_signature(replica: int = 0) -> Signature | None:
    """Return the signature of the function that is being traced, its conditions and loops included; None eagerly."""
    if tf.executing_eagerly():
        return None
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "outer_graph", None) is not None and graph.outer_graph.building_function:
        graph = graph.outer_graph
    return _of_graph.setdefault(graph, {}).setdefault(replica, Signature())


def next_key(entries: Sequence[str], replica: int = 0) -> str:
    """Return the key of the operation that reduces these next, and note them in the function's signature."""
    traced = current_signature(replica)
    return EAGER if traced is None else [traced.add(entry) for entry in entries][-1]


def described(kind: str, tensor: tf.Tensor, label: str, shape: tf.TensorShape | None = None) -> str:
    """Describe an operation on a tensor, for signatures and messages."""
    shape = tensor.shape if shape is None else shape
    return " ".join(filter(None, [kind, tensor.dtype.name, str(shape), label]))
