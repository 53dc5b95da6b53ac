"""Folders of the cache in which wheels of Horovod and build logs are kept.

Example:
    >>> Cache(Path("/data/tfdist")).log("key")
    PosixPath('/data/tfdist/logs/key.log')
"""

import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tfdist import cache
from tfdist.errors import ConfigError
from tfdist.variables import CACHE_DIR


@dataclass(frozen=True)
class Cache:
    """A writable folder of the cache."""

    root: Path

    @property
    def work(self) -> Path:
        """The folder of wheels that are not in place yet, and of the temporary folders of builds."""
        return self.root / "work"

    @property
    def workplace(self) -> Path:
        """The parent of a build's temporary folder, without spaces, which TensorFlow's compiler flags cannot carry."""
        for place in (self.work, Path(tempfile.gettempdir())):
            if not any(sign.isspace() for sign in str(place)):
                return place
        raise ConfigError(
            f"the paths of the cache, {str(self.root)!r}, and of the folder for temporary files, {str(place)!r}, both "
            "have spaces, which Horovod's build cannot carry. Name another for one of them: export TMPDIR=/path",
            name="TMPDIR",
            path=place,
        )

    def log(self, key: str) -> Path:
        """Return the path of the log of the last failed build of this key."""
        return self.root / "logs" / f"{key}.log"

    def lock(self, key: str) -> Path:
        """Return the file that a build of this key locks."""
        return self.root / "locks" / f"{key}.lock"

    def wheel(self, key: str, name: str) -> Path:
        """Return the path of the wheel of this key, present or future."""
        return self.root / "wheels" / key / name

    def find(self, key: str, name: str) -> Path | None:
        """Return the wheel of this key; None when there is none, or when the file is damaged."""
        wheel = self.wheel(key, name)
        try:
            with zipfile.ZipFile(wheel) as archive:
                return wheel if archive.testzip() is None else None
        except (OSError, zipfile.BadZipFile, EOFError):
            return None

    def put(self, wheel: Path, key: str, name: str) -> Path:
        """Put a wheel in its place at once: others see the old file, or the whole new one."""
        return cache.put(wheel, self.wheel(key, name), work=self.work)


def open_cache(environ: Mapping[str, str]) -> Cache:
    """Return the cache, with its folders made and tried."""
    root = cache.folder(environ)
    if any(sign in str(root) for sign in ":;\n"):
        raise ConfigError(
            f"the cache folder is {str(root)!r}; colons, semicolons and line ends divide lists of paths in the "
            f"programs of a build, so its path must have none. Name another: export TFDIST_CACHE_DIR=/path",
            name=CACHE_DIR.name,
            path=root,
        )
    cache.make(root, ("work", "logs", "wheels", "locks"))
    return Cache(root)
