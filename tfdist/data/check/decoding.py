"""Pictures of a directory, decoded by TensorFlow in processes of their own: to find those that no training can read."""

import os
from collections.abc import Sequence
from types import TracebackType

from tfdist.data.format.picture_decoding import WORTH_A_PROCESS, look_at
from tfdist.data.format.schema import Schema
from tfdist.errors import ConfigError
from tfdist.processes.pool.task_pool import TaskPool

_MOST = 8  # processes


class Decoding:
    """Says why pictures cannot be decoded; to be used in a ``with`` block, in any number of threads."""

    def __init__(self, schema: Schema, size: int) -> None:
        if not any(feature.encoding == "bytes" for feature in schema.values()):
            raise ConfigError(
                f"decode is for pictures, and {', '.join(map(repr, schema))} hold none. Leave it out.",
                name="decode",
                received=True,
            )
        self._pool = TaskPool(max(1, min(_MOST, len(os.sched_getaffinity(0)), size // WORTH_A_PROCESS)))

    def __enter__(self) -> "Decoding":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.close(at_once=error is not None)

    def __call__(self, contents: Sequence[bytes]) -> list[str]:
        """Return what is wrong with each picture, empty for nothing; BMP and WebP are as good as others here."""
        looks = self._pool.ask(look_at, list(contents), True)
        return [look.problem if look.is_broken else "" for look in looks]
