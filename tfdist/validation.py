"""One wording per check, so that every error of tfdist reads alike; a bool is not a number here.

Each function takes the name that the user knows (an argument, a flag, a variable) and the value, and returns the value
in its proper type.

Example:
    >>> integer("workers", 2, minimum=1)
    2
    >>> integer("workers", True)
    Traceback (most recent call last):
    ...
    tfdist.errors.ConfigTypeError: workers is True (bool); it must be an integer.
"""

import difflib
import math
import operator
from collections.abc import Iterable
from typing import Any

from tfdist.errors import ConfigError, ConfigTypeError


def shown(value: object, *, limit: int = 200) -> str:
    """Return ``value`` as an error message shows it: its repr, shortened in the middle beyond ``limit`` characters.

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
    """Return ``value`` as an int within the bounds, both included.

    Example:
        >>> integer("epochs", 3, minimum=1)
        3
    """
    required = "an integer" + _bounds(minimum, maximum)
    if isinstance(value, bool) or not hasattr(type(value), "__index__"):
        raise _type_error(name, value, required, hint)
    try:
        number = operator.index(value)
    except TypeError:  # a NumPy bool or an array has the method and refuses
        raise _type_error(name, value, required, hint) from None
    if _outside(number, minimum, maximum):
        raise _value_error(name, value, required, hint)
    return number


def parse_integer(
    name: str, text: str, *, minimum: int | None = None, maximum: int | None = None, hint: str = ""
) -> int:
    """Return the int that ``text`` (an environment variable, a flag) spells in decimal digits.

    Example:
        >>> parse_integer("SLURM_PROCID", "3", minimum=0)
        3
    """
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
    """Return ``value`` as a finite float within the bounds (``minimum``, ``maximum`` included, ``above`` excluded).

    Example:
        >>> number("grace_seconds", 5, minimum=0)
        5.0
    """
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


def boolean(name: str, value: Any, *, hint: str = "") -> bool:
    """Return ``value`` if it is exactly True or False.

    Example:
        >>> boolean("shuffle", False)
        False
    """
    if not isinstance(value, bool):
        raise _type_error(name, value, "True or False", hint)
    return value


def text(name: str, value: Any, *, hint: str = "") -> str:
    """Return ``value`` if it is a str that is not empty.

    Example:
        >>> text("name", "ring")
        'ring'
    """
    if not isinstance(value, str):
        raise _type_error(name, value, "a text", hint)
    if not value.strip():
        raise _value_error(name, value, "a text that is not empty", hint)
    return value


def nearest(name: object, known: Iterable[str]) -> str:
    """Return a question that names what was probably meant, with a space before it; "" where nothing is near.

    Example:
        >>> nearest("mirored", ["mirrored", "ring"]), nearest("x", ["mirrored", "ring"])
        (" Did you mean 'mirrored'?", '')
    """
    found = difflib.get_close_matches(name, list(known), n=1) if isinstance(name, str) else []
    return f" Did you mean {found[0]!r}?" if found else ""


def one_of(name: str, value: Any, allowed: Iterable[Any], *, hint: str = "") -> Any:
    """Return ``value`` if it equals one of ``allowed``, compared together with its type (True is not 1).

    Example:
        >>> one_of("tail", "pad", ("pad", "drop"))
        'pad'
    """
    choices = list(allowed)
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        meant = nearest(value, [choice for choice in choices if isinstance(choice, str)]).strip()
        hint = " ".join(text for text in (meant, hint) if text)
        raise _value_error(name, value, "one of " + ", ".join(repr(choice) for choice in choices), hint)
    return value


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
