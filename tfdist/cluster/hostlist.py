"""Slurm's compressed lists: node names (``a[1-3,7]b[01-04],c9``) and counts (``2(x3),1``), both pure.

A name may have several ranges; the last varies fastest. A lower bound with leading zeros fixes the width.

Example:
    >>> expand("a[08-10],c")
    ['a08', 'a09', 'a10', 'c']
"""

import itertools
import math
import re

from tfdist.errors import ConfigError
from tfdist.validation import shown

MAX_NODES = 100_000  # a typing error such as n[1-999999999] must not eat the memory
_TOKEN = re.compile(r"\[(?P<ranges>[^\[\]]*)\]|(?P<plain>[^\[\],\s]+)")
_RANGE = re.compile(r"(?P<low>\d{1,18})(?:-(?P<high>\d{1,18}))?", re.ASCII)
_COUNT = re.compile(r"(?P<count>\d{1,9})(?:\(x(?P<times>\d{1,9})\))?", re.ASCII)


def expand(nodes: str, *, name: str = "node list") -> list[str]:
    """Return the node names, in order, with repetitions.

    Example:
        >>> expand("r[1-2]n[3,5]")
        ['r1n3', 'r1n5', 'r2n3', 'r2n5']
    """
    result: list[str] = []
    for entry in _entries(nodes, name):
        parts = _parts(entry, nodes, name)
        _check_size(len(result) + math.prod(len(part) for part in parts), nodes, name)
        result.extend("".join(choice) for choice in itertools.product(*parts))
    return result


def expand_counts(counts: str, *, name: str = "tasks per node") -> list[int]:
    """Return one count per node from Slurm's short form.

    Example:
        >>> expand_counts("2(x3),1")
        [2, 2, 2, 1]
    """
    result: list[int] = []
    for entry in counts.strip().split(","):
        found = _COUNT.fullmatch(entry)
        if not found:
            raise ConfigError(
                f"{name} is {shown(counts)}; {entry!r} must be a count, or COUNT(xTIMES) such as 2(x3).",
                name=name,
                received=counts,
            )
        times = int(found["times"] or 1)
        _check_size(len(result) + times, counts, name)
        result.extend([int(found["count"])] * times)
    return result


def _entries(nodes: str, name: str) -> list[str]:
    """Split at the commas outside of brackets."""
    entries: list[str] = []
    depth = start = 0
    text = nodes.strip()
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise _bad(nodes, name, f"the bracket at character {position + 1} does not match")
        if character == "," and depth == 0:
            entries.append(text[start:position])
            start = position + 1
    if depth:
        raise _bad(nodes, name, "a bracket is not closed")
    entries.append(text[start:])
    if not all(entries):
        raise _bad(nodes, name, "an entry is empty")
    return entries


def _parts(entry: str, nodes: str, name: str) -> list[list[str]]:
    """Return the choices at each place of an entry: one for plain text, the numbers for a bracket."""
    parts: list[list[str]] = []
    position = 0
    while position < len(entry):
        token = _TOKEN.match(entry, position)
        if not token:
            raise _bad(nodes, name, f"{entry!r} contains white space")
        parts.append([token["plain"]] if token["plain"] else _numbers(token["ranges"], nodes, name))
        position = token.end()
    return parts


def _numbers(ranges: str, nodes: str, name: str) -> list[str]:
    numbers: list[str] = []
    for part in ranges.split(","):
        found = _RANGE.fullmatch(part)
        if not found:
            raise _bad(nodes, name, f"{part!r} in [{ranges}] is neither a number nor LOW-HIGH")
        low, high = found["low"], found["high"] or found["low"]
        if int(high) < int(low):
            raise _bad(nodes, name, f"the range {part} runs backwards")
        _check_size(len(numbers) + int(high) - int(low) + 1, nodes, name)
        numbers.extend(str(number).zfill(len(low)) for number in range(int(low), int(high) + 1))
    return numbers


def _check_size(size: int, text: str, name: str) -> None:
    if size > MAX_NODES:
        raise ConfigError(
            f"{name} is {shown(text)}, which means over {MAX_NODES} nodes; check its ranges.", name=name, received=text
        )


def _bad(nodes: str, name: str, what: str) -> ConfigError:
    return ConfigError(
        f"{name} is {shown(nodes)}: {what}; it must be a list such as a[1-3,7],b[01-04],c9, as Slurm writes it.",
        name=name,
        received=nodes,
    )
