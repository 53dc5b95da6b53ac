"""A checkpoint of several processes: each writes its part, and one writes the manifest that commits them.

Nobody waits for the others but that one: who has written a part leaves a receipt beside it, which says what was
written. All processes know a save by the same mark, so that a part of another save, which a killed process left, is
never taken for one of this.

Example:
    >>> file = File(name="worker-00001.safetensors", bytes=9, crc32c=7, part=1)
    >>> joint = Joint(run="0123abcd", number=3, count=2)
    >>> read_receipt(receipt(joint, step=4, part=1, file=file), joint, step=4, part=1) == file
    True
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfdist.checkpoint.checkpoint_manifest import File, canonical, file_from
from tfdist.errors import StorageError


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one worker adds to a checkpoint.

    Attributes:
        index: of the worker.
        arrays: names to arrays, as `Store.save` takes them; a name is in one part alone.
    """

    index: int
    arrays: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Joint:
    """A save that several processes make together.

    Attributes:
        run: 8 hexadecimal digits, drawn by one of the processes when they began, which tells them from others.
        number: which of their saves this is; each number is used once.
        count: how many parts there are.
        timeout_seconds: how long the one that writes the manifest waits for the parts of the others.
    """

    run: str
    number: int
    count: int
    timeout_seconds: float = 120.0

    @property
    def mark(self) -> str:
        """16 hexadecimal digits that no other save has."""
        return f"{self.run}{self.number:08x}"


def receipt(joint: Joint, *, step: int, part: int, file: File) -> bytes:
    """Return what says that a part was written."""
    return _sealed({**_about(joint, step, part), "file": asdict(file)})


def failure(joint: Joint, *, step: int, part: int, reason: str) -> bytes:
    """Return what says that a part will not come."""
    return _sealed({**_about(joint, step, part), "failed": reason})


def read_receipt(data: bytes, joint: Joint, *, step: int, part: int) -> File | None:
    """Return what `receipt` was given; None where it is not whole yet, or of something else."""
    about = _about(joint, step, part)
    try:
        found = json.loads(data)
        content = {key: value for key, value in found.items() if key != "digest"}
        if _sealed(content) != data or any(content.get(key) != value for key, value in about.items()):
            return None
    except (ValueError, AttributeError, RecursionError):
        return None
    if "failed" in content:
        raise StorageError(f"Worker {part} could not save its part: {content['failed']}", workers=(part,))
    return file_from(content["file"])


def _about(joint: Joint, step: int, part: int) -> dict[str, Any]:
    return {"save": joint.mark, "step": step, "part": part, "parts": joint.count}


def _sealed(content: dict[str, Any]) -> bytes:
    return canonical({**content, "digest": hashlib.sha256(canonical(content)).hexdigest()})
