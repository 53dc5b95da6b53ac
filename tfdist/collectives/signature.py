"""The sequence of a function's reductions, compared before workers with different functions wait in vain."""

import hashlib


class Signature:
    """The collectives of one traced function so far, and a digest of them.

    The digest names collectives: those of workers that have traced the same up to here have equal names, whatever
    they traced before; those of workers whose functions differ never meet.

    Example:
        >>> signature = Signature()
        >>> one, two = signature.add("sum float32 [3]"), signature.add("sum float32 [3]")
        >>> one == two, len(signature.entries)
        (False, 2)
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
    """Return where two lists of entries part, and what each has there ("nothing more" behind an end).

    Example:
        >>> first_difference(["a", "b"], ["a", "c"])
        (1, 'b', 'c')
        >>> first_difference(["a"], [])
        (0, 'a', 'nothing more')
    """
    length = max(len(mine), len(theirs))
    pad = "nothing more"
    pairs = list(zip(mine + [pad] * (length - len(mine)), theirs + [pad] * (length - len(theirs)), strict=True))
    position = next((index for index, (a, b) in enumerate(pairs) if a != b), length)
    return (position, *pairs[position]) if position < length else (position, pad, pad)
