"""The manifest of a checkpoint, its names, and the receipts of parts that several processes write.

The manifest is one JSON file with exactly one spelling, so that every changed byte is noticed. A worker that has
written its part leaves a receipt, and one process writes the manifest that commits all parts. All processes identify a
save by the same mark, so a part that a killed process left of another save is never taken for a part of this one.
"""

import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError, StorageError, fields_of
from tfdist.storage.files import FolderKind, parsed_manifest, plain_name

PREFIX = "step-"
SUFFIX = ".safetensors"
ARRAYS = "arrays"
RECEIPT = ".receipt"
_NAME = re.compile(PREFIX + "[0-9]{12}")
NAME = "manifest.json"
FORMAT = "tfdist checkpoint"
LARGEST_BYTES = 16 << 20  # JSON needs many times its size in memory when it is read
LARGEST_STEP = 10**12 - 1
LARGEST_PARTS = 99_999
# 2: with parts of workers. What has none is written as it was before there were any.
_FIELDS = {1: {"format", "version", "step", "state", "files", "digest"}}
_FIELDS[2] = {*_FIELDS[1], "parts"}
_MOST = 1 << 62


def step_name(step: int) -> str:
    return f"{PREFIX}{step:012d}"


def is_step_name(name: str) -> bool:
    """Return whether a name has the form that `step_name` makes."""
    return bool(_NAME.fullmatch(name))


def step_of(name: str) -> int:
    return int(name.removeprefix(PREFIX))


#: the folders of a store; files of others in them stay
FOLDERS = FolderKind(is_name=is_step_name, last=NAME, ours=(SUFFIX, RECEIPT), passing=RECEIPT)


def part_name(index: int) -> str:
    return f"worker-{index:05d}"


@dataclass(frozen=True, kw_only=True)
class File:
    """One file of a checkpoint: name, bytes, CRC-32C, and the worker whose part it is, or None for the whole job."""

    name: str
    bytes: int
    crc32c: int
    part: int | None = None


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """A checkpoint without its arrays: step, JSON of the caller, files, and the number of workers with parts of it."""

    step: int
    state: dict[str, Any]
    files: tuple[File, ...]
    parts: int = 0

    @functools.cached_property
    def digest(self) -> str:
        """A digest of 64 hexadecimal digits that differs when anything does, arrays included."""
        return hashlib.sha256(canonical(self._json())).hexdigest()

    def to_bytes(self) -> bytes:
        data = canonical({**self._json(), "digest": self.digest})
        if len(data) > LARGEST_BYTES:
            raise ConfigError(
                f"state has {len(data)} bytes as JSON; at most {LARGEST_BYTES} can be. Put numbers into arrays.",
                name="state",
                received=len(data),
            )
        return data

    def _json(self) -> dict[str, Any]:
        found = {"format": FORMAT, "version": 1, "step": self.step, "state": self.state}
        files = [asdict(file) for file in self.files]
        if self.parts:
            return {**found, "version": 2, "files": files, "parts": self.parts}
        return {**found, "files": [{key: file[key] for key in file if key != "part"} for file in files]}

    @classmethod
    def from_bytes(cls, data: bytes) -> "Manifest":
        try:
            return _read(data)
        except (ConfigError, RecursionError) as error:
            raise CorruptDataError(
                f"{NAME} cannot be used: {str(error) or 'it is nested too deeply.'}", path=NAME, **fields_of(error)
            ) from error


def canonical(value: Any) -> bytes:
    """Return the one spelling of a JSON value: keys sorted, no spaces, only ASCII.

    NaN and infinities, which a loss can be, are spelled as Python's json does, which extends the standard.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``state`` as it will be read back."""
    if not isinstance(state, Mapping):
        raise validation.mismatch("state", state, "a mapping of names to JSON values.", kind=ConfigTypeError)
    try:
        copied = _plain("state", state)
    except RecursionError:
        raise ConfigError("state is nested too deeply, or contains itself; it must be JSON.", name="state") from None
    assert isinstance(copied, dict)
    return copied


def _plain(where: str, value: Any) -> Any:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Mapping):
        for key in value:
            if type(key) is not str:
                raise ConfigTypeError(
                    f"{where} has the key {validation.shown(key)} ({type(key).__name__}); keys must be str, because "
                    "JSON has no others.",
                    name=where,
                    received=validation.shown(key),
                )
        return {key: _plain(f"{where}[{key!r}]", inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(f"{where}[{i}]", inner) for i, inner in enumerate(value)]
    raise ConfigTypeError(
        f"{where} is {validation.shown(value)} ({type(value).__name__}); it must be JSON: None, bool, int, float, str, "
        "lists and mappings of them. Convert it, or put it into arrays.",
        name=where,
        received=validation.shown(value),
    )


def _read(data: bytes) -> Manifest:
    found = parsed_manifest(data, FORMAT, _FIELDS, largest=LARGEST_BYTES)
    if not isinstance(found["state"], dict) or not isinstance(found["files"], list):
        raise ConfigError("its state must be an object, and its files a list.")
    manifest = Manifest(
        step=validation.integer("step", found["step"], minimum=0, maximum=LARGEST_STEP),
        state=found["state"],
        files=tuple(file_from(value) for value in found["files"]),
        parts=validation.integer("parts", found["parts"], minimum=1, maximum=LARGEST_PARTS) if "parts" in found else 0,
    )
    have = {file.part for file in manifest.files} - {None}
    if missing := set(range(manifest.parts)) - have:
        raise ConfigError(
            f"it names no file of worker {min(missing)}, of {manifest.parts}.",
            name="parts",
            received=manifest.parts,
            workers=missing,
        )
    if have - set(range(manifest.parts)):
        raise ConfigError(
            f"it names files of more workers than {manifest.parts}.", name="parts", received=manifest.parts
        )
    names = [file.name for file in manifest.files]
    if len({*names, NAME}) != len(names) + 1:
        raise ConfigError("two of its files have the same name.")
    if found["digest"] != manifest.digest:
        raise ConfigError("its digest does not fit the rest of it: it was changed, or damaged.")
    if canonical(found) != data:
        raise ConfigError("it is not spelled as it was written: it was changed, or damaged.")
    return manifest


def file_from(value: Any) -> File:
    """Return a file's entry from its JSON; the first version of the format has no parts."""
    if not isinstance(value, dict) or set(value) - {"part"} != {"name", "bytes", "crc32c"}:
        raise ConfigError(
            f"a file of it is {validation.shown(value)}; it must have name, bytes and crc32c.",
            received=validation.shown(value),
        )
    part = value.get("part")
    return File(
        name=plain_name(value["name"]),
        bytes=validation.integer("bytes of a file", value["bytes"], minimum=0, maximum=_MOST),
        crc32c=validation.integer("crc32c of a file", value["crc32c"], minimum=0, maximum=2**32 - 1),
        part=None if part is None else validation.integer("part of a file", part, minimum=0, maximum=LARGEST_PARTS),
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """The contribution of one worker to a checkpoint.

    Attributes:
        index: the worker's index.
        arrays: the arrays by name, as for `Store.save`; each name is in only one part.
    """

    index: int
    arrays: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Joint:
    """A save that several processes make together.

    Attributes:
        run: 8 hexadecimal digits, drawn by one of the processes when they began, which identify this group of
            processes.
        number: the number of the save among theirs; each number is used once.
        count: the number of parts.
        timeout_seconds: how long the process that writes the manifest waits for the other parts, in seconds.
    """

    run: str
    number: int
    count: int
    timeout_seconds: float = 120.0

    @property
    def mark(self) -> str:
        """A mark of 16 hexadecimal digits that no other save has."""
        return f"{self.run}{self.number:08x}"


def receipt(joint: Joint, *, step: int, part: int, file: File) -> bytes:
    """Return the receipt that says that a part was written."""
    return _sealed({**_about(joint, step, part), "file": asdict(file)})


def failure(joint: Joint, *, step: int, part: int, reason: str) -> bytes:
    """Return the receipt that says that a part could not be written, and why."""
    return _sealed({**_about(joint, step, part), "failed": reason})


def read_receipt(data: bytes, joint: Joint, *, step: int, part: int) -> File | None:
    """Return the file that a receipt describes; None if the receipt is not whole yet, or belongs to another part."""
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
