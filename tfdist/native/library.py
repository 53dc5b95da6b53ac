"""Compiled op libraries: built in seconds, cached per user, and verified before use.

Mapping a truncated library would crash the process. So a cached library has its digest after its last byte, where the
loader does not look. If the digest does not match, the library is ignored.
"""

import contextlib
import hashlib
import logging
import os
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, TypeVar

from tfdist import cache
from tfdist.errors import ConfigError, DeadlineError, MissingDependencyError, TfdistError
from tfdist.native.build_target import COMPILERS, Target, find_program, missing_compiler, observe
from tfdist.variables import CACHE_DIR

SOURCES = Path(__file__).parent
_FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden")
_LINKING = ("-shared", "-Wl,-z,defs")  # undefined symbols are errors, so a cached library can be loaded
_SEAL = b"tfdist-sha256:"
_SEAL_BYTES = len(_SEAL) + hashlib.sha256().digest_size
_COMPILE_SECONDS = 900.0
_LOOK_SECONDS = 0.02
_WAIT_SECONDS = 1800.0
_log = logging.getLogger(__name__)
_Loaded = TypeVar("_Loaded")


@dataclass(frozen=True, kw_only=True)
class Library:
    """A library, compiled from all C++ files of a folder."""

    name: str
    folder: str  # the folder of the sources, below `SOURCES`
    flags: tuple[str, ...]  # additional flags for the compiler
    takes: str  # the compile time on two idle processors, in words
    shares: tuple[str, ...] = ()  # headers of other folders that the sources include
    uses_tensorflow: bool = True  # whether it is linked to TensorFlow's library, which the process must have loaded

    def sources(self, pattern: str) -> list[Path]:
        """Return the files of the folder that match a pattern."""
        return sorted((SOURCES / self.folder).glob(pattern))


RECORDS = Library(name="records", folder=".", flags=("-O2",), takes="some seconds")
COLLECTIVES = Library(
    name="collectives", folder="collectives", flags=("-O3", "-pthread"), takes="half a minute", shares=("handles.h",)
)
CODECS = Library(
    name="codecs",
    folder="codecs",
    # products and sums are rounded separately, as in TensorFlow's operations
    flags=("-O3", "-pthread", "-ffp-contract=off"),
    takes="some seconds",
    shares=("handles.h", "collectives/helpers.h", "collectives/standard_floats.h"),
)
STAMPS = Library(
    name="stamps",
    folder="stamps",
    # must match TensorFlow's own flags, which set the alignment of tensors in memory
    flags=("-O2", "-ftree-vectorize", "-pthread", "-DEIGEN_MAX_ALIGN_BYTES=64"),
    takes="half a minute",
    shares=(
        *("codecs/vectorized.h", "collectives/dtype.h", "collectives/helpers.h"),
        *("collectives/layout.h", "collectives/standard_floats.h", "collectives/stream.h"),
    ),
)
DEVICE_STAMPS = Library(
    name="device_stamps",
    folder="device_stamps",
    # the alignment is that of `STAMPS`; older C libraries have the functions of dlopen in libdl
    flags=("-O2", "-pthread", "-DEIGEN_MAX_ALIGN_BYTES=64", "-Wl,--no-as-needed,-ldl"),
    takes="half a minute",
)
LEAST_SQUARES = Library(
    name="least_squares",
    folder="least_squares",
    # square roots do not set errno, and a product and a sum become one instruction if the processor has it
    flags=("-O3", "-fno-math-errno", "-ffp-contract=fast"),
    takes="some seconds",
    uses_tensorflow=False,
)
LIBRARIES = (RECORDS, COLLECTIVES, CODECS, STAMPS, DEVICE_STAMPS, LEAST_SQUARES)
#: The library of a benchmark. Only the benchmark compiles it.
BARE = Library(name="bare", folder="bare", flags=("-O3",), takes="some seconds", uses_tensorflow=False)


@dataclass(frozen=True, kw_only=True)
class Built:
    """The path of the library that `build` returns, and whether it was "built" or "kept"."""

    path: Path
    was: str


def name(of: Library, target: Target, *, digest: str) -> str:
    """Return the file name of a library, which names everything that the library depends on.

    The C++ ABI is not part of the name. Only `collectives/cancellation.cc` uses a member of a C++ class of TensorFlow,
    and TensorFlow's version covers that.
    """
    parts = (of.name, f"{target.package}-{target.version}", target.platform, target.libc, digest[:12])
    return "-".join(part for part in parts if part) + ".so"


def digest_of_sources(of: Library) -> str:
    """Return the SHA-256 of all compiled files and of the flags."""
    total = hashlib.sha256(" ".join((*_FLAGS, *_LINKING, *of.flags)).encode())
    shared = [SOURCES / name for name in of.shares]
    for path in [*sorted([*of.sources("*.cc"), *of.sources("*.h")]), *shared]:
        content = path.read_bytes()
        total.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def place(of: Library, target: Target, environ: Mapping[str, str]) -> Path:
    """Return the path of the library in the cache."""
    return cache.folder(environ) / "ops" / name(of, target, digest=digest_of_sources(of))


def find(of: Library, target: Target, environ: Mapping[str, str]) -> Path | None:
    """Return the path of the library; None if it is missing or damaged."""
    path = place(of, target, environ)
    try:
        return path if is_sealed(path.read_bytes()) else None
    except OSError:
        return None


def why_not(of: Library, environ: Mapping[str, str]) -> str:
    """Return the reason why the library is unavailable here; empty if it is cached or a compiler exists."""
    try:
        if not find(of, observe(), environ):
            _compiler(environ)
    except TfdistError as error:
        return str(error)
    return ""


def sealed(content: bytes) -> bytes:
    """Return the bytes of a library with their digest appended."""
    return content + _SEAL + hashlib.sha256(content).digest()


def is_sealed(content: bytes) -> bool:
    return sealed(content[:-_SEAL_BYTES]) == content


def build(
    of: Library,
    target: Target,
    environ: Mapping[str, str],
    *,
    force: bool = False,
    on_start: Callable[[str], None] = lambda sentence: None,
) -> Built:
    """Return the library, compiled first if it is not cached. Of several processes one compiles and the others wait."""
    kept = None if force else find(of, target, environ)
    if kept:
        return Built(path=kept, was="kept")
    compiler = _compiler(environ)
    root, path = cache.folder(environ), place(of, target, environ)
    cache.make(root, ("work", "logs", "locks", "ops"))

    def say(holder: str) -> None:
        on_start(f"Waiting for {holder}, which compiles the same ops.")

    with (
        _reported(root),
        cache.locked(root / "locks" / f"{path.stem}.lock", timeout_seconds=_WAIT_SECONDS, on_wait=say),
    ):
        kept = None if force else find(of, target, environ)
        if kept:
            return Built(path=kept, was="kept")
        on_start(f"Compiling tfdist's ops of {of.name} for TensorFlow {target.version} ({of.takes}, once).")
        cache.remove_stale(root / "work")
        with tempfile.TemporaryDirectory(dir=root / "work", prefix="ops-") as work:
            made = Path(work, f"{of.name}.so")
            _make(of, compiler, target, made, environ, log=root / "logs" / f"{path.stem}.log")
            made.write_bytes(sealed(made.read_bytes()))
            cache.put(made, path, work=Path(work))
    return Built(path=path, was="built")


def compile_command(of: Library, compiler: Sequence[str], target: Target, source: Path, output: Path) -> list[str]:
    flags = [*_FLAGS, *of.flags, "-isystem", str(target.include)]
    return [*compiler, *flags, "-c", str(source), "-o", str(output)]


def link_command(
    of: Library, compiler: Sequence[str], target: Target, objects: Sequence[Path], output: Path
) -> list[str]:
    library = [f"-L{target.include.parent}", "-l:libtensorflow_framework.so.2"] if of.uses_tensorflow else []
    return [*compiler, *_FLAGS, *of.flags, *_LINKING, *map(str, objects), "-o", str(output), *library]


def _compiler(environ: Mapping[str, str]) -> list[str]:
    path = find_program(environ, "CXX", *COMPILERS)
    if path is None:
        chosen = environ.get("CXX")
        if not chosen:
            raise MissingDependencyError(f"{missing_compiler()}.", name="CXX")
        raise MissingDependencyError(
            f"CXX is {chosen!r}, and no such program is on PATH. Name another, or unset it.",
            name="CXX",
            received=chosen,
        )
    return [path, *shlex.split(environ.get("CXX", ""))[1:]]


@contextlib.contextmanager
def _reported(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, TfdistError):
            raise
        raise ConfigError(
            f"the ops cannot be kept in {root} ({error.strerror or error}). Free some space there, or name another "
            "folder: export TFDIST_CACHE_DIR=/path",
            name=CACHE_DIR.name,
            path=root,
        ) from error


def _make(
    of: Library, compiler: Sequence[str], target: Target, made: Path, environ: Mapping[str, str], *, log: Path
) -> None:
    sources = of.sources("*.cc")
    objects = [made.with_name(f"{source.stem}.o") for source in sources]
    pairs = zip(sources, objects, strict=True)
    with log.open("w", encoding="utf-8") as file:
        _run([compile_command(of, compiler, target, *pair) for pair in pairs], environ, cwd=made.parent, log=file)
        _run([link_command(of, compiler, target, objects, made)], environ, cwd=made.parent, log=file)
    log.unlink()


def _run(commands: Sequence[Sequence[str]], environ: Mapping[str, str], *, cwd: Path, log: TextIO) -> None:
    """Run commands, one per processor at a time, until all have ended or one has failed."""
    environ = {**environ, "LC_ALL": "C.UTF-8", "TMPDIR": str(cwd), "CCACHE_DISABLE": "1"}
    at_once, deadline = len(os.sched_getaffinity(0)), time.monotonic() + _COMPILE_SECONDS
    waiting, running = list(reversed(commands)), list[_Command]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                with _interrupted_later():  # an interrupt here would leave a process that is not in `running` yet
                    running.append(_Command(waiting.pop(), environ, cwd))
            time.sleep(_LOOK_SECONDS)
            for command in [command for command in running if command.process.poll() is not None]:
                running.remove(command)
                command.require_success(log)
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the compiler did not end within {_COMPILE_SECONDS:g} s. The log: {log.name}", path=log.name
                )
    finally:
        for command in running:
            command.end(log)


class _Command:
    """A running command, and the file with its output."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], cwd: Path) -> None:
        self._arguments = arguments
        self._output = tempfile.TemporaryFile(dir=cwd)  # noqa: SIM115 - closed when it has been copied to the log
        self.process = subprocess.Popen(
            arguments,
            cwd=cwd,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that processes of the compiler can be ended with it
        )

    def require_success(self, log: TextIO) -> None:
        written = self._logged(log)
        if self.process.returncode:
            program, code = self._arguments[0], self.process.returncode
            raise TfdistError(
                f"{program} ended with code {code}: {first_error(written)}. The full log: {log.name}", path=log.name
            )

    def end(self, log: TextIO) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._logged(log)

    def _logged(self, log: TextIO) -> str:
        with self._output:
            self._output.seek(0)
            written = self._output.read().decode(errors="replace")
        log.write(f"$ {shlex.join(self._arguments)}\n{written}")
        log.flush()
        return written


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def first_error(log: str) -> str:
    """Return the first error in a compiler's output, or its last line."""
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("$ ")]
    marked = (line for line in lines if "error: " in line or "undefined reference" in line)
    return next(marked, lines[-1] if lines else "it wrote nothing")


def load(of: Library, made: Callable[[Path], _Loaded]) -> _Loaded:
    """Load a library; the first process that asks compiles it."""
    target, environ, force = observe(), dict(os.environ), False
    errors: tuple[type[Exception], ...] = (OSError,)
    if of.uses_tensorflow:
        import tensorflow as tf

        errors = (OSError, tf.errors.OpError)
    while True:
        built = build(of, target, environ, force=force, on_start=_log.warning)
        try:
            return made(built.path)
        except errors as error:
            if built.was == "built":
                raise TfdistError(f"{built.path} cannot be loaded ({error})") from error
        force = True  # the cached library may come from a machine with newer system libraries


def load_or_none(of: Library, made: Callable[[Path], _Loaded], *, instead: str) -> _Loaded | None:
    """Load a library as `load` does; if it is unavailable, log a warning and return None."""
    try:
        return load(of, made)
    except (TfdistError, OSError, AttributeError) as error:
        _log.warning("%s, which takes longer, because tfdist's ops are missing: %s", instead, error)
        return None


def module_of(path: Path, names: Iterable[str]) -> Any:
    import tensorflow as tf

    module = tf.load_op_library(str(path))
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise TfdistError(f"{path} has no op {missing}. Compile it anew: tfdist build ops --force")
    return module
