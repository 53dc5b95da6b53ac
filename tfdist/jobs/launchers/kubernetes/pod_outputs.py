"""Files that a job on Kubernetes sends to the place of its submission: a trace, events, output of exporters.

The launcher runs in the first pod, whose files vanish with it. They are sent through the pod's log, which is followed
anyway and needs no further permission: as records, which the follower removes from the lines that it shows.
"""

import base64
import contextlib
import json
import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from tfdist.errors import StorageError

FOLDER = Path("/dev/shm")  # each pod has one of its own, and nothing has to be made for it
LOOK_SECONDS = 1.0

_GROWS, _WHOLE = "tfdist-grows-", "tfdist-whole-"
_MARK = b"\x1etfdist-output "
_PIECE = 3000  # characters: a record is below 4096 bytes, which a pipe takes in one piece
_LONGEST = 4096


@dataclass(frozen=True, kw_only=True)
class Output:
    """A file or a folder from the first pod. A file that `grows` is only appended to; others are sent at the end."""

    place: Path
    grows: bool = False
    is_folder: bool = False

    def in_pod(self, number: int, folder: Path = FOLDER) -> str:
        return str(folder / f"{_GROWS if self.grows else _WHOLE}{number}")


@contextlib.contextmanager
def sent(folder: Path = FOLDER, *, write: Callable[[bytes], object] = lambda data: os.write(1, data)) -> Iterator[None]:
    """Write growing outputs to the log while a job runs, and the others at its end."""
    sender, over = _Sender(folder, write), threading.Event()

    def run() -> None:
        while not over.wait(LOOK_SECONDS):
            sender.look(_GROWS)

    thread = threading.Thread(target=run, name="outputs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        sender.look(_GROWS)
        sender.look(_WHOLE)


class _Sender:
    def __init__(self, folder: Path, write: Callable[[bytes], object]) -> None:
        self._folder = folder
        self._write = write
        self._done: dict[Path, int] = {}

    def look(self, kind: str) -> None:
        for place in sorted(self._folder.glob(f"{kind}*")):
            number = place.name.removeprefix(kind)
            if not number.isdecimal():  # a file that is to take its place
                continue
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                with contextlib.suppress(OSError):
                    if path.is_file():
                        self._send(path, number, path.relative_to(place).as_posix())

    def _send(self, path: Path, number: str, name: str) -> None:
        begun = self._done.get(path, 0)
        with path.open("rb") as file:
            file.seek(begun)
            data = file.read()
        if not data:
            return
        text = base64.b64encode(zlib.compress(data)).decode()
        pieces = [text[place : place + _PIECE] for place in range(0, len(text), _PIECE)]
        for place, piece in enumerate(pieces):
            record = {"output": int(number), "name": name, "left": len(pieces) - 1 - place, "data": piece}
            self._write(_MARK + json.dumps(record).encode() + b"\n")
        self._done[path] = begun + len(data)


@dataclass
class Receiver:
    """A receiver that takes outputs out of a pod's log, and writes them to their places. Each pod has its own."""

    outputs: Sequence[Output]
    say: Callable[[str], None]
    _rest: bytes = b""
    _pieces: list[str] = field(default_factory=list)

    def shown(self, data: bytes, *, is_last: bool = False) -> bytes:
        """Return the part of the log to show; the rest was written, or is kept until more arrives."""
        data, self._rest = self._rest + data, b""
        shown = b""
        while data:
            place = data.find(_MARK)
            if place < 0:
                kept = 0 if is_last else _beginning(data)
                shown, self._rest = shown + data[: len(data) - kept], data[len(data) - kept :]
                break
            shown, data = shown + data[:place], data[place:]
            record, end, after = data.partition(b"\n")
            if not end and not is_last and len(record) < _LONGEST:
                self._rest = data
                break
            if end and self._took(record.removeprefix(_MARK)):
                data = after
            else:  # it only looks like one
                shown, data = shown + data[: len(_MARK)], data[len(_MARK) :]
        return shown

    def _took(self, record: bytes) -> bool:
        """Handle a record; True if it is one."""
        try:
            content = json.loads(record)
            output, name = self.outputs[content["output"]], PurePosixPath(content["name"])
            left, piece = int(content["left"]), str(content["data"])
        except (ValueError, KeyError, TypeError, IndexError):
            return False
        if name.is_absolute() or ".." in name.parts:
            return False
        self._pieces.append(piece)
        if left == 0:
            whole, self._pieces = "".join(self._pieces), []
            try:
                data = zlib.decompress(base64.b64decode(whole))
            except (ValueError, zlib.error):  # its first pieces are missing
                return True
            self._write(output.place / name, data, appends=output.grows)
        return True

    def _write(self, path: Path, data: bytes, *, appends: bool) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab" if appends else "wb") as file:
                file.write(data)
        except OSError as error:
            self.say(f"warning: {path} cannot be written ({error.strerror})")
            return
        if not appends:
            self.say(f"{path} has come from the first pod")


def require_writable(outputs: Sequence[Output]) -> None:
    """Check that growing outputs can be written, before anything is submitted."""
    for output in outputs:
        try:
            if output.is_folder:
                output.place.mkdir(parents=True, exist_ok=True)
            elif output.grows:
                output.place.open("ab").close()
        except OSError as error:
            raise StorageError(
                error.errno,
                f"{output.place} cannot be written ({error.strerror}). Name another place.",
                path=output.place,
            ) from error


def _beginning(data: bytes) -> int:
    """Return the number of bytes at the end that may begin a record."""
    return next((size for size in range(min(len(_MARK), len(data)), 0, -1) if _MARK.startswith(data[-size:])), 0)
