"""The libraries of our ops: compiled in seconds, kept in the user's cache, and whole whenever they are found there.

A library that is cut short would end the process that maps it. So a kept one carries its own digest behind its last
byte, where the loader does not look, and one whose digest does not fit counts for none.

Example:
    >>> name(RECORDS, Target.example(), digest="0123456789abcdef")
    'records-tensorflow-2.21.0-linux_x86_64-glibc2.36-0123456789ab.so'
"""

import contextlib
import hashlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist import cache
from tfdist.errors import ConfigError, DeadlineError, MissingDependencyError, TfdistError
from tfdist.native.target import COMPILERS, Target, find_program, missing_compiler, observe

SOURCES = Path(__file__).parent
_FLAGS = ("-std=c++17", "-fPIC", "-shared", "-fvisibility=hidden", "-Wl,-z,defs")
_SEAL = b"tfdist-sha256:"
_SEAL_BYTES = len(_SEAL) + hashlib.sha256().digest_size
_COMPILE_SECONDS = 900.0
_WAIT_SECONDS = 1800.0


@dataclass(frozen=True, kw_only=True)
class Library:
    """One of the libraries: all C++ files of a folder.

    Attributes:
        name: of the library.
        folder: where its sources are, below `SOURCES`.
        flags: for the compiler, beside those that all have.
        takes: how long it takes to compile, in words, on two idle processors.
        shares: headers of other folders that it includes.
    """

    name: str
    folder: str
    flags: tuple[str, ...]
    takes: str
    shares: tuple[str, ...] = ()

    def sources(self, pattern: str) -> list[Path]:
        """Return the files of its folder that a pattern fits."""
        return sorted((SOURCES / self.folder).glob(pattern))


RECORDS = Library(name="records", folder=".", flags=("-O2",), takes="some seconds")
COLLECTIVES = Library(name="collectives", folder="collectives", flags=("-O3", "-pthread"), takes="half a minute")
CODECS = Library(
    name="codecs",
    folder="codecs",
    # products and sums are rounded one by one, as TensorFlow's operations are
    flags=("-O3", "-pthread", "-ffp-contract=off"),
    takes="some seconds",
    shares=("collectives/helpers.h", "collectives/standard_floats.h"),
)
LIBRARIES = (RECORDS, COLLECTIVES, CODECS)


@dataclass(frozen=True, kw_only=True)
class Built:
    """The library that `build` returns.

    Attributes:
        path: where it is kept.
        was: "built", or "kept" when there was nothing to do.
    """

    path: Path
    was: str


def name(of: Library, target: Target, *, digest: str) -> str:
    """Return the file name of a library: everything that it depends on.

    The ops use TensorFlow's C interface, and of its C++ classes only where `collectives/cancellation.cc` finds a
    member, which the version says: so what a compiler makes of C++ classes is no part of it.

    Args:
        of: which one.
        target: what it is compiled for.
        digest: of the sources and flags, in hexadecimal digits.
    """
    parts = (of.name, f"{target.package}-{target.version}", target.platform, target.libc, digest[:12])
    return "-".join(part for part in parts if part) + ".so"


def digest_of_sources(of: Library) -> str:
    """Return the SHA-256 of everything that is compiled, and of the flags."""
    total = hashlib.sha256(" ".join((*_FLAGS, *of.flags)).encode())
    shared = [SOURCES / name for name in of.shares]
    for path in [*sorted([*of.sources("*.cc"), *of.sources("*.h")]), *shared]:
        content = path.read_bytes()
        total.update(f"\n{path.name} {len(content)}\n".encode() + content)
    return total.hexdigest()


def place(of: Library, target: Target, environ: Mapping[str, str]) -> Path:
    """Return where the library is kept, or will be."""
    return cache.folder(environ) / "ops" / name(of, target, digest=digest_of_sources(of))


def find(of: Library, target: Target, environ: Mapping[str, str]) -> Path | None:
    """Return the library; None when there is none, or when the file is damaged."""
    path = place(of, target, environ)
    try:
        return path if is_sealed(path.read_bytes()) else None
    except OSError:
        return None


def why_not(of: Library, environ: Mapping[str, str]) -> str:
    """Return why the library is not to be had here, or an empty text where it is kept or there is a compiler."""
    try:
        if not find(of, observe(), environ):
            _compiler(environ)
    except TfdistError as error:
        return str(error)
    return ""


def sealed(content: bytes) -> bytes:
    """Return the bytes of a library with their digest behind them.

    Example:
        >>> is_sealed(sealed(b"library")), is_sealed(sealed(b"library")[:-1]), is_sealed(b"")
        (True, False, False)
    """
    return content + _SEAL + hashlib.sha256(content).digest()


def is_sealed(content: bytes) -> bool:
    """Return whether the bytes are those of a whole library."""
    return sealed(content[:-_SEAL_BYTES]) == content


def build(
    of: Library,
    target: Target,
    environ: Mapping[str, str],
    *,
    force: bool = False,
    on_start: Callable[[str], None] = lambda sentence: None,
) -> Built:
    """Return the library, compiled unless it is kept; of several processes one compiles and the others wait for it.

    Args:
        of: which one.
        target: what it is compiled for.
        environ: the environment: PATH, CXX, and where the cache is.
        force: compile anew, whatever is kept.
        on_start: called with a sentence before the compiler is started, or another process is waited for.
    Raises:
        MissingDependencyError: there is no compiler.
        ConfigError: the cache cannot be written.
        DeadlineError: the compiler, or another process, took too long.
        TfdistError: the compiler failed; the message has the first error and where the log is.
    """
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
            _compile(
                command(of, compiler, target, made), environ, cwd=Path(work), log=root / "logs" / f"{path.stem}.log"
            )
            made.write_bytes(sealed(made.read_bytes()))
            cache.put(made, path, work=Path(work))
    return Built(path=path, was="built")


def command(of: Library, compiler: Sequence[str], target: Target, output: Path) -> list[str]:
    """Return the command that compiles the library.

    Example:
        >>> command(RECORDS, ["g++"], Target.example(), Path("a.so"))[-2:]
        ['-L/env/lib/python3.11/site-packages/tensorflow', '-l:libtensorflow_framework.so.2']
    """
    # Undefined symbols are errors (-z defs): a library that is kept can be loaded.
    library = [f"-L{target.include.parent}", "-l:libtensorflow_framework.so.2"]
    sources = map(str, of.sources("*.cc"))
    return [*compiler, *_FLAGS, *of.flags, "-isystem", str(target.include), *sources, "-o", str(output), *library]


def _compiler(environ: Mapping[str, str]) -> list[str]:
    path = find_program(environ, "CXX", *COMPILERS)
    if path is None:
        chosen = environ.get("CXX")
        raise MissingDependencyError(
            f"CXX is {chosen!r}, and no such program is on PATH. Name another, or unset it." if chosen
            else f"{missing_compiler()}."
        )  # fmt: skip
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
            "folder: export TFDIST_CACHE_DIR=/path"
        ) from error


def _compile(arguments: Sequence[str], environ: Mapping[str, str], *, cwd: Path, log: Path) -> None:
    with log.open("w", encoding="utf-8") as file:
        file.write(f"$ {shlex.join(arguments)}\n")
        file.flush()
        process: subprocess.Popen[bytes] | None = None
        try:
            with _interrupted_later():  # a process that is started and not known yet could not be ended
                process = subprocess.Popen(
                    arguments,
                    cwd=cwd,
                    env={**environ, "LC_ALL": "C.UTF-8", "TMPDIR": str(cwd), "CCACHE_DISABLE": "1"},
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,  # so that what the compiler starts can be ended with it
                )
            code = process.wait(timeout=_COMPILE_SECONDS)
        except subprocess.TimeoutExpired:
            raise DeadlineError(f"the compiler did not end within {_COMPILE_SECONDS:g} s. The log: {log}") from None
        finally:
            if process is not None and process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if code:
        cause = first_error(log.read_text(encoding="utf-8", errors="replace"))
        raise TfdistError(f"{arguments[0]} ended with code {code}: {cause}. The full log: {log}")
    log.unlink()


@contextlib.contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let Ctrl-C count when the block has ended."""
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
    """Return the first error in what a compiler wrote; its last line where none is marked.

    Example:
        >>> first_error("$ g++ a.cc\\na.cc:1:10: fatal error: x.h: No such file or directory\\ncompilation terminated.")
        'a.cc:1:10: fatal error: x.h: No such file or directory'
    """
    lines = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("$ ")]
    marked = (line for line in lines if "error: " in line or "undefined reference" in line)
    return next(marked, lines[-1] if lines else "it wrote nothing")
