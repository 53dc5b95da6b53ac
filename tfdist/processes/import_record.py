"""A record of the files that imports have read. It finds files that changed since, and files that hide a module.

In a worker the same hook detects environment variables that a script sets too late. A script that sets a variable and
then imports a library expects the library to read it, but the warm process has imported the library already.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Mapping

from tfdist.cluster.job_files import PREFIX
from tfdist.processes.surroundings import is_read_by_imports

Signature = tuple[int, int, int] | None  # inode, size and time of change; None: there is no such file
_OF_THE_KERNEL = ("/proc/", "/sys/", "/dev/", "/memfd:")
_MODULES, _ABOUT_PACKAGES = (".py", ".pyc", ".so"), (".pth", ".dist-info", ".egg-info", ".egg-link")
_SET_LATER = "HOROVOD_"  # variables that tfdist sets before Horovod reads them
# Many scripts set these in their first lines. A new start of the worker would not give them more effect: `tfdist run`
# chooses the level of TensorFlow's log, and tfdist always imports Keras with this backend.
_CHANGE_NOTHING = (("TF_CPP_MIN_LOG_LEVEL", None), ("KERAS_BACKEND", "tensorflow"))
_PASSING = ("__pycache__", f"/{PREFIX}")  # bytecode and the job's own folder do not count
# Events after which a script cannot be run again unnoticed: it has changed something outside of its process, or started
# something that continues.
_LASTING = (
    *("os.chdir", "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.kill", "os.killpg", "os.link"),
    *("os.mkdir", "os.posix_spawn", "os.remove", "os.rename", "os.rmdir", "os.symlink", "os.system", "os.truncate"),
    *("os.utime", "shutil.", "socket.bind", "socket.connect", "socket.sendto", "subprocess.Popen", "tempfile."),
    *("_thread.start_new_thread", "sqlite3.connect", "signal.pthread_kill", "builtins.input"),
)


class ImportRecord:
    """A record of imports, which begins when the object is made and ends with `close`."""

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._opened: set[str] = set()
        self._asked: set[str] = set()
        self._files: dict[str, Signature] = {}
        self._folders: dict[str, frozenset[str]] = {}
        self._set: dict[str, str] = {}
        self._begin_again: Callable[[str, bool], None] | None = None
        self._has_lasting_effects = False
        self._hear: Callable[[str, tuple[object, ...]], None] = self._hear_import
        sys.addaudithook(lambda event, arguments: self._hear(event, arguments))
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        """Note the name of a module that is imported; Python asks each entry of `sys.meta_path` for it."""
        self._asked.add(name.partition(".")[0])

    def close(self) -> None:
        """End the record, and note the state of all files that were opened or loaded and of the folders searched."""
        self._hear = _ignore
        sys.meta_path.remove(self)
        loaded = {getattr(one, "__file__", None) for one in list(sys.modules.values())}
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            mapped = {line.rstrip("\n").split(maxsplit=5)[-1] for line in maps if "/" in line}
        for path in self._opened | mapped | {one for one in loaded if isinstance(one, str)}:
            if os.path.isabs(path) and not path.startswith(_OF_THE_KERNEL) and _PASSING[0] not in path:
                self._files[path] = _signature(path)
        self._asked |= {name.partition(".")[0] for name in sys.modules}
        self._asked -= {"__main__", *sys.builtin_module_names}
        self._folders = {folder: self._seen(folder) for folder in sys.path if os.path.isdir(folder)}
        self._set = {name: value for name, value in os.environ.items() if self._before.get(name) != value}

    def changed(self) -> str:
        """Return a file or folder that has changed since it was read; empty if there is none."""
        for path, signature in self._files.items():
            if _signature(path) != signature:
                return path
        return next((folder for folder, seen in self._folders.items() if self._seen(folder) != seen), "")

    def hidden_by(self, folder: str) -> str:
        """Return a path in the script's folder that would hide a module imported from elsewhere; empty if none."""
        with contextlib.suppress(OSError):
            for entry in os.scandir(folder):
                name = entry.name.partition(".")[0]
                if name not in self._asked or not _is_module(entry):
                    continue
                file = getattr(sys.modules.get(name), "__file__", None) or ""
                if not os.path.realpath(file).startswith(os.path.realpath(entry.path).removesuffix(".py")):
                    return entry.path
        return ""

    def environment(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Return these variables with the changes that the imports would have made to them."""
        own = {name: value for name, value in self._set.items() if wanted.get(name) == self._before.get(name)}
        return {**wanted, **own}

    def watch(self, begin_again: Callable[[str, bool], None]) -> None:
        """Call a function if a variable is set too late: with its name, and whether the script left no trace so far."""
        self._begin_again = begin_again
        self._hear = self._hear_script

    def _seen(self, folder: str) -> frozenset[str]:
        """Return the entries of a folder of `sys.path` that can affect the recorded imports."""
        try:
            names = os.listdir(folder)
        except OSError:
            return frozenset()
        return frozenset(one for one in names if one.endswith(_ABOUT_PACKAGES) or one.partition(".")[0] in self._asked)

    def _hear_import(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            self._opened.add(os.path.abspath(os.fsdecode(arguments[0])))

    def _hear_script(self, event: str, arguments: tuple[object, ...]) -> None:
        if event in ("os.putenv", "os.unsetenv"):
            name, value = (*(os.fsdecode(one) for one in arguments), None)[:2]  # type: ignore[arg-type]
            if (
                is_read_by_imports(str(name))
                and not str(name).startswith(_SET_LATER)
                and not any(one == name and its in (None, value) for one, its in _CHANGE_NOTHING)
                and value != os.environ.get(str(name))
                and self._begin_again is not None
            ):
                self._hear = _ignore
                self._begin_again(str(name), not self._has_lasting_effects)
                self._hear = self._hear_script
        elif not self._has_lasting_effects:
            passes = bool(arguments) and any(one in str(arguments[0]) for one in _PASSING)
            is_written = event == "open" and bool(int(arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))  # type: ignore[call-overload]
            self._has_lasting_effects = (is_written or event.startswith(_LASTING)) and not passes


def _ignore(event: str, arguments: tuple[object, ...]) -> None:
    """Ignore an event."""


def _signature(path: str) -> Signature:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _is_module(entry: "os.DirEntry[str]") -> bool:
    if entry.is_dir():  # a module takes precedence over a folder without this file
        return any(os.path.exists(os.path.join(entry.path, f"__init__{suffix}")) for suffix in _MODULES)
    return entry.name.endswith(_MODULES)
