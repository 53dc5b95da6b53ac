"""Add a file to a wheel, next to its metadata."""

import base64
import hashlib
import zipfile
from pathlib import Path


def add_to_metadata(wheel: Path, name: str, text: str, *, destination: Path) -> None:
    """Write the wheel to ``destination`` with one more file in its folder of metadata, and in its list of files."""
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(destination, "w", zipfile.ZIP_DEFLATED) as copy:
        (listing,) = (entry for entry in source.infolist() if entry.filename.endswith(".dist-info/RECORD"))
        added = listing.filename.removesuffix("RECORD") + name
        for entry in source.infolist():
            if entry.filename != listing.filename:
                copy.writestr(entry, source.read(entry))
        copy.writestr(added, text)
        copy.writestr(listing, source.read(listing).decode() + record_line(added, text.encode()))


def record_line(path: str, content: bytes) -> str:
    """Return a line of a wheel's list of files.

    Example:
        >>> record_line("a.txt", b"")
        'a.txt,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\\n'
    """
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"
