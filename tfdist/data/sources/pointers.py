"""Detect pointer files of Git LFS and git-annex in place of real data.

Example:
    >>> is_pointer(b"version https://git-lfs.github.com/spec/v1\\noid sha256:4d7a"), is_pointer(b"version,date")
    (True, False)
"""

from tfdist.data.sources import source_files
from tfdist.errors import ConfigError

LARGEST_BYTES = 1024
_BEGINNINGS = {
    b"version https://git-lfs.github.com/spec/": "git lfs pull",
    b"version https://hawser.github.com/spec/": "git lfs pull",
    b"/annex/objects/": "git annex get .",
}


def is_pointer(head: bytes) -> bool:
    """Return whether a file with these first bytes is a pointer."""
    return head.startswith(tuple(_BEGINNINGS))


def require_content(path: str, size: int | None = None) -> None:
    """Refuse a file that is a pointer."""
    if 0 < (source_files.entry(path).size if size is None else size) <= LARGEST_BYTES:
        refuse(path, source_files.head(path, LARGEST_BYTES))


def refuse(name: str, head: bytes) -> None:
    """Refuse a file whose first bytes are those of a pointer."""
    for beginning, command in _BEGINNINGS.items():
        if head.startswith(beginning):
            raise ConfigError(
                f"{name} is a pointer to a file that was not fetched, so its examples are missing. Run `{command}` in "
                "its repository, or leave the file out.",
                path=name,
            )
