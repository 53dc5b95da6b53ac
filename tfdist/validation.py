"""Checks of values, each with one wording, so that all errors of tfdist read alike. A bool does not count as a number.

Each function takes the value and the name that the user knows: an argument, a flag or a variable. It returns the value
in its proper type.

Example:
    >>> integer("workers", 2, minimum=1)
    2
    >>> integer("workers", True)
    Traceback (most recent call last):
    ...
    tfdist.errors.ConfigTypeError: workers is True (bool); it must be an integer.
"""

import ast
import difflib
import math
import operator
import os
import re
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tfdist.errors import ConfigError, ConfigTypeError

_TIME_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_BYTE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def shown(value: object, *, limit: int = 200) -> str:
    """Return the repr of ``value`` for an error message, shortened in the middle beyond ``limit`` characters.

    Example:
        >>> shown("x" * 300, limit=20)
        "'xxxxxxx...xxxxxxxx'"
    """
    text = repr(value)
    if len(text) <= limit:
        return text
    head = (limit - 3) // 2
    return f"{text[:head]}...{text[len(text) - (limit - 3 - head) :]}"


def integer(name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None, hint: str = "") -> int:
    """Return ``value`` as an int, after checking that it is within the bounds, both included."""
    required = "an integer" + _bounds(minimum, maximum)
    # a NumPy bool is 1 or 0 as an index for NumPy 2.0, which only warns; for NumPy 1 the class is called bool_
    if type(value).__name__ in ("bool", "bool_") or not hasattr(type(value), "__index__"):
        raise _type_error(name, value, required, hint)
    try:
        number = operator.index(value)
    except TypeError:  # a NumPy array has the method, but it raises
        raise _type_error(name, value, required, hint) from None
    if _outside(number, minimum, maximum):
        raise _value_error(name, value, required, hint)
    return number


def parse_integer(
    name: str, text: str, *, minimum: int | None = None, maximum: int | None = None, hint: str = ""
) -> int:
    """Return the int that ``text`` (an environment variable or a flag) spells in decimal digits."""
    stripped = text.strip()
    digits = stripped[1:] if stripped[:1] in ("-", "+") else stripped
    readable = digits.isascii() and digits.isdigit() and len(digits) <= 100
    if not readable or _outside(int(stripped), minimum, maximum):
        raise _value_error(name, text, "an integer" + _bounds(minimum, maximum), hint)
    return int(stripped)


def number(
    name: str,
    value: Any,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    above: float | None = None,
    hint: str = "",
) -> float:
    """Return ``value`` as a finite float from ``minimum`` to ``maximum``, both included, and greater than ``above``."""
    required = "a finite number" + _bounds(minimum, maximum, above)
    if isinstance(value, (bool, str, bytes)) or not (hasattr(type(value), "__float__") or hasattr(value, "__index__")):
        raise _type_error(name, value, required, hint)
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise _type_error(name, value, required, hint) from None
    except OverflowError:
        result = math.inf
    if not math.isfinite(result) or _outside(result, minimum, maximum) or (above is not None and result <= above):
        raise _value_error(name, value, required, hint)
    return result


def boolean(name: str, value: Any) -> bool:
    """Return ``value`` if it is exactly True or False."""
    if not isinstance(value, bool):
        raise _type_error(name, value, "True or False", "")
    return value


def text(name: str, value: Any, *, hint: str = "") -> str:
    """Return ``value`` if it is a str that is not empty."""
    if not isinstance(value, str):
        raise _type_error(name, value, "a text", hint)
    if not value.strip():
        raise _value_error(name, value, "a text that is not empty", hint)
    return value


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a space and a question that offers the most similar known name; "" if no name is similar.

    Example:
        >>> nearest("mirored", ["mirrored", "ring"]), nearest("x", ["mirrored", "ring"])
        (" Did you mean 'mirrored'?", '')
    """
    found = difflib.get_close_matches(name, list(known), n=1) if isinstance(name, str) else []
    return f" Did you mean {found[0]!r}?" if found else ""


def one_of(name: str, value: Any, allowed: Iterable[Any], *, hint: str = "") -> Any:
    """Return ``value`` if it equals one of ``allowed`` and has the same type (True is not 1)."""
    choices = list(allowed)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        meant = nearest(value, [choice for choice in choices if isinstance(choice, str)]).strip()
        hint = " ".join(text for text in (meant, hint) if text)
        raise _value_error(name, value, "one of " + ", ".join(repr(choice) for choice in choices), hint)
    return value


def as_bytes(text: str) -> int:
    """Return the bytes of a size such as 4096, 4K, 1.5G, 4MB or 4MiB; K, M, G and T are powers of 1024.

    Example:
        >>> as_bytes("4K"), as_bytes("256MiB"), as_bytes("1.5 GB")
        (4096, 268435456, 1610612736)
    """
    found = re.fullmatch(r"\s*(\d+|\d+\.\d+(?=\s*[KMGT]))\s*([KMGT]?)(?:I?B)?\s*", text, re.IGNORECASE)
    size = int(Fraction(found[1]) * _BYTE_UNITS[found[2].upper()]) if found else 0
    if not size:
        raise ConfigError(f"a size is {text!r}; it must be a number of bytes above 0, such as 4096, 4K or 1.5G.")
    return size


def as_seconds(text: str, *, name: str, unit: str = "") -> float:
    """Return the seconds of a duration such as 90s, 30m, 1.5h or 2d; ``unit`` is that of a number without one.

    Example:
        >>> as_seconds("1.5h", name="--deadline"), as_seconds("90", name="--idle", unit="s")
        (5400.0, 90.0)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", text)
    given = (found[2] or unit) if found else ""
    seconds = float(found[1]) * _TIME_UNITS[given] if found and given else 0.0
    if not seconds:
        raise _value_error(name, text, "a time above 0", "Write 90s, 30m, 1.5h or 2d.")
    return seconds


def shown_bytes(number: int) -> str:
    """Return a number of bytes as text that `as_bytes` reads, in the largest unit that divides it.

    Example:
        >>> shown_bytes(4096), shown_bytes(1500), shown_bytes(256 << 20)
        ('4K', '1500', '256M')
    """
    unit = next(unit for unit in ("G", "M", "K", "") if number % _BYTE_UNITS[unit] == 0)
    return f"{number // _BYTE_UNITS[unit]}{unit}"


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, which is a plural unless the number is 1; by default the noun with an "s".

    Example:
        >>> counted(1, "worker"), counted(2, "worker"), counted(1200, "process", "processes")
        ('1 worker', '2 workers', '1,200 processes')
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def parsed_script(name: str, path: str | os.PathLike[str]) -> ast.Module:
    """Parse a Python script, so that a command notices an error of syntax before it does anything slow.

    Example:
        >>> parsed_script("script", "/dev/null").body
        []
    """
    try:
        with open(path, "rb") as file:
            return ast.parse(file.read(), filename=os.fspath(path))
    except (SyntaxError, ValueError) as error:  # ValueError: it has a zero byte
        line = getattr(error, "lineno", None)
        where = f", line {line}" if line else ""
        raise ConfigError(
            f"{name} is {os.fspath(path)!r}, which is not valid Python: {getattr(error, 'msg', error)}{where}. "
            "Correct it first.",
            name=name,
            received=os.fspath(path),
        ) from error


def mismatch(
    subject: str, value: object, required: str, *, name: str = "", kind: type[ConfigError] = ConfigError
) -> ConfigError:
    """Return the error for a value that is not ``required``, the end of a sentence. ``name`` is ``subject`` by default.

    Example:
        >>> raise mismatch("label", ["a", "b"], "the name of one feature.")
        Traceback (most recent call last):
        tfdist.errors.ConfigError: label is ['a', 'b']; it must be the name of one feature.
    """
    received = shown(value)
    return kind(f"{subject} is {received}; it must be {required}", name=name or subject, received=received)


def _outside(number: float, minimum: float | None, maximum: float | None) -> bool:
    return (minimum is not None and number < minimum) or (maximum is not None and number > maximum)


def _bounds(minimum: float | None, maximum: float | None, above: float | None = None) -> str:
    if minimum is not None and maximum is not None:
        return f" from {minimum} to {maximum}"
    if minimum is not None:
        return f" of at least {minimum}"
    low = f" above {above}" if above is not None else ""
    high = f" of at most {maximum}" if maximum is not None else ""
    return low + (" and" if low and high else "") + high


def _value_error(name: str, value: object, required: str, hint: str) -> ConfigError:
    return ConfigError(
        _message(name, shown(value), required, hint),
        name=name,
        received=value if isinstance(value, str) else shown(value),
    )


def _type_error(name: str, value: object, required: str, hint: str) -> ConfigTypeError:
    received = f"{shown(value)} ({type(value).__name__})"
    return ConfigTypeError(_message(name, received, required, hint), name=name, received=shown(value))


def _message(name: str, received: str, required: str, hint: str) -> str:
    return f"{name} is {received}; it must be {required}." + (f" {hint}" if hint else "")
