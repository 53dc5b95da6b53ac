"""Reports of errors between processes, as JSON, and their comparison with expected values.

A report is the type of the error, its fields `name` and `received`, and its message, which only a reader of the failed
test needs.
"""

from collections.abc import Callable, Sequence
from typing import Any

NOTHING: list[Any] = ["nothing was refused", None, None, ""]


def fields(error: BaseException) -> list[Any]:
    """Return the report of an error; one that is not tfdist's has no fields."""
    kind = type(error).__name__
    return [kind, getattr(error, "name", None), getattr(error, "received", None), str(error)]


def met(action: Callable[[], Any], *kinds: type[BaseException]) -> list[Any]:
    """Run something, and return the report of the error that it raises, or `NOTHING`.

    Args:
        action: what is expected to raise.
        kinds: of the errors that are expected; another one goes on.
    """
    try:
        action()
    except kinds as error:
        return fields(error)
    return NOTHING


def are(report: Sequence[Any], *expected: Any) -> bool:
    """Return whether a report begins with these values, of which ``...`` stands for any.

    Of the message, which comes last, one fact is expected, not all of it.
    """
    (*values, message) = report
    wanted, fact = expected[: len(values)], "".join(expected[len(values) :])
    return fact in message and all(one is ... or one == found for one, found in zip(wanted, values, strict=False))
