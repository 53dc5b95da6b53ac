"""Warnings of tfdist's, heard by a test case."""

import contextlib
import logging
from collections.abc import Iterator


@contextlib.contextmanager
def heard() -> Iterator[list[str]]:
    """Yield a list that gets what tfdist logs inside."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("tfdist").addHandler(handler)
    try:
        yield said
    finally:
        logging.getLogger("tfdist").removeHandler(handler)
