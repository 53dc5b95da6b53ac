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
_TRAILING_DIGITS = re.compile(r"(?P<prefix>.*?)(?P<digits>\d{1,18})", re.ASCII | re.DOTALL)


def expand(nodes: str, *, name: str = "node list") -> list[str]:
    """Return the node names that ``nodes`` stands for, in its order, repetitions kept.

    Args:
        nodes: the list as Slurm writes it.
        name: the variable it was read from, for messages.
    Raises:
        ConfigError: brackets that do not match, an empty entry, a range that runs backwards, more than 100,000 nodes.

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


def compress(nodes: list[str]) -> str:
    """Return the shortest list of one-bracket entries, neighbours joined, that expands to ``nodes`` in this order.

    Args:
        nodes: names without commas, brackets and white space.

    Example:
        >>> compress(["n1", "n2", "n3", "m07", "m08"])
        'n[1-3],m[07-08]'
    """
    entries: list[str] = []
    for prefix, group in itertools.groupby((_split(node) for node in nodes), key=lambda pair: pair[0]):
        digits = [pair[1] for pair in group]
        if digits[0] is None:
            entries.extend(prefix for _ in digits)
            continue
        runs = _runs([text for text in digits if text is not None])
        ranges = [low if low == high else f"{low}-{high}" for low, high in runs]
        single = len(ranges) == 1 and "-" not in ranges[0]
        entries.append(prefix + (ranges[0] if single else f"[{','.join(ranges)}]"))
    return ",".join(entries)


def expand_counts(counts: str, *, name: str = "tasks per node") -> list[int]:
    """Return one count per node from Slurm's short form.

    Raises:
        ConfigError: not of that form, or more than 100,000 nodes.

    Example:
        >>> expand_counts("2(x3),1")
        [2, 2, 2, 1]
    """
    result: list[int] = []
    for entry in counts.strip().split(","):
        found = _COUNT.fullmatch(entry)
        if not found:
            raise ConfigError(f"{name} is {shown(counts)}; {entry!r} must be a count, or COUNT(xTIMES) such as 2(x3).")
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
    """Return the choices at each place of one entry: a plain text has one, a bracket has its numbers."""
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


def _split(node: str) -> tuple[str, str | None]:
    found = _TRAILING_DIGITS.fullmatch(node)
    return (found["prefix"], found["digits"]) if found else (node, None)


def _runs(digits: list[str]) -> list[tuple[str, str]]:
    """Join numbers that follow each other and that expanding from the first would write the same way."""
    runs: list[tuple[str, str]] = []
    for text in digits:
        if runs:
            low, high = runs[-1]
            if text == str(int(high) + 1).zfill(len(low)):
                runs[-1] = (low, text)
                continue
        runs.append((text, text))
    return runs


def _check_size(size: int, text: str, name: str) -> None:
    if size > MAX_NODES:
        raise ConfigError(f"{name} is {shown(text)}, which stands for over {MAX_NODES} nodes; check its ranges.")


def _bad(nodes: str, name: str, what: str) -> ConfigError:
    return ConfigError(
        f"{name} is {shown(nodes)}: {what}; it must be a list such as a[1-3,7],b[01-04],c9, as Slurm writes it."
    )
