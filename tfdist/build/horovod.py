"""`tfdist build horovod`: look at what is installed, take the wheel from the cache or build it, install it, prove it.

Example:
    >>> install().built_in  # doctest: +SKIP
    ('gloo',)
"""

import contextlib
import importlib.metadata
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from tfdist.build import gpu, recipe, target
from tfdist.build.cache import Cache, locked, open_cache
from tfdist.build.cause import Cause, find_cause
from tfdist.build.compiling import Build, OnProgress
from tfdist.build.installed import Installed, Proof, find_installed, misfit, prove
from tfdist.build.program import ProgramError, Runner
from tfdist.build.recipe import Options
from tfdist.build.target import Target
from tfdist.errors import ConfigError, TfdistError
from tfdist.launch.resources import guarded

_INSTALL_SECONDS = 600.0
_PROVE_SECONDS = 300.0
_WAIT_SECONDS = 3 * 3600.0
_STALE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What `install` did.

    Attributes:
        version: of Horovod.
        tensorflow: the version of TensorFlow that it was built for.
        built_in: the transports.
        was: "installed" (there was nothing to do), "cached" (the wheel came from the cache) or "built".
        wheel: the wheel in the cache; None when there was nothing to do.
        is_installed: whether it is installed now.
    """

    version: str
    tensorflow: str
    built_in: tuple[str, ...]
    was: str
    wheel: Path | None = None
    is_installed: bool = True


def install(
    options: Options | None = None,
    *,
    force: bool = False,
    only_cache: bool = False,
    jobs: int | None = None,
    log: Path | None = None,
    environ: Mapping[str, str] | None = None,
    on_progress: OnProgress = lambda stage, part: None,
) -> Outcome:
    """Install Horovod, built for the TensorFlow that is installed here, into this Python environment.

    When it returns, ``import horovod.tensorflow`` and an allreduce over one process have worked in a child process, now
    or when the same wheel was installed. The wheel is built once for each (Horovod, TensorFlow, Python, options).

    Args:
        options: what is built in besides gloo.
        force: build anew, whatever is installed or kept.
        only_cache: make the wheel and install nothing.
        jobs: how many files are compiled at once; by default as processors and memory allow.
        log: where to write what the programs say; by default kept in the cache when the build fails.
        environ: the environment; this process' own by default.
        on_progress: called with the name of a stage and, where it is known, the part of it that is done.
    Returns:
        What was done.
    Raises:
        MissingDependencyError: TensorFlow, a compiler or make is missing; said before anything is fetched.
        ConfigError: the cache or the log cannot be written.
        DeadlineError: a program or another build took too long.
        TfdistError: the build failed; the message has the cause in one line, and where the log is.

    Example:
        >>> install().built_in  # doctest: +SKIP
        ('gloo',)
    """
    options = options or Options()
    environ = os.environ if environ is None else environ
    here = target.observe()
    found = find_installed()
    if not force and not only_cache:
        kept = _kept(found, here, options, environ, on_progress)
        if kept:
            return kept
    cache = open_cache(environ)
    wheel, was = _wheel(cache, here, options, force=force, jobs=jobs, log=log, environ=environ, on_progress=on_progress)
    if not only_cache:
        _install_wheel(cache, wheel, here, options, environ, on_progress)
    return Outcome(
        version=recipe.VERSION,
        tensorflow=here.version,
        built_in=options.built_in,
        was=was,
        wheel=wheel,
        is_installed=not only_cache,
    )


def _kept(
    found: Installed | None, here: Target, options: Options, environ: Mapping[str, str], on_progress: OnProgress
) -> Outcome | None:
    """What is installed, when it does: by its record, or as something else built it, by trying it."""
    if found is None:
        return None
    built_in: tuple[str, ...] = ()
    if found.record is not None and not misfit(found, here, options):
        built_in = found.record.built_in
    elif found.record is None and found.is_whole:
        on_progress("checking", None)
        built_in = prove(environ, timeout_seconds=_PROVE_SECONDS).built_in
    if not set(options.built_in) <= set(built_in):
        return None
    return Outcome(version=found.version, tensorflow=here.version, built_in=built_in, was="installed")


def _wheel(
    cache: Cache,
    here: Target,
    options: Options,
    *,
    force: bool,
    jobs: int | None,
    log: Path | None,
    environ: Mapping[str, str],
    on_progress: OnProgress,
) -> tuple[Path, str]:
    key, name = recipe.key(here, options), recipe.wheel_name(here)
    kept = None if force else cache.find(key, name)
    if kept:
        return kept, "cached"
    target.require_tools(target.find_tools(environ))

    def say(holder: str) -> None:
        on_progress(f"waiting for {holder}, which builds the same", None)

    with locked(cache, key, timeout_seconds=_WAIT_SECONDS, on_wait=say):
        kept = None if force else cache.find(key, name)  # another process may have built it meanwhile
        if kept:
            return kept, "cached"
        processors, memory = len(os.sched_getaffinity(0)), psutil.virtual_memory().available
        jobs = jobs or recipe.jobs(processors=processors, available_bytes=memory)
        with _runner(cache, log or cache.log(key), keep=log is not None, verb="built") as runner:
            build = Build(
                target=here, options=options, jobs=jobs, inherited=environ, runner=runner, on_progress=on_progress
            )
            return cache.put(build.wheel(), key, name), "built"


@contextlib.contextmanager
def _runner(cache: Cache, path: Path, *, keep: bool, verb: str) -> Iterator[Runner]:
    """A runner with a temporary folder and a log, which stays if it shall or when a program fails."""
    _remove_stale(cache.work)
    try:
        file = path.open("w", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the log {path} cannot be written ({error.strerror}). Name another: --log FILE") from error
    try:
        with file, guarded(secrets.token_hex(8), parent=cache.work) as guard:
            yield Runner(guard=guard, log=file)
    except (TfdistError, OSError) as error:
        keep = True
        raise TfdistError(_explained(error, path, verb=verb)) from error
    finally:
        if not keep:
            path.unlink(missing_ok=True)


def _explained(error: TfdistError | OSError, log: Path, *, verb: str) -> str:
    why = Cause(str(error))
    if isinstance(error, ProgramError):
        why = find_cause(log.read_text(encoding="utf-8", errors="replace") + f"\n{error}")
    elif isinstance(error, OSError):
        why = find_cause(str(error))
    cure = [f"What to do: {why.cure}"] if why.cure else []
    return "\n".join([f"Horovod was not {verb}: {why.line}", *cure, f"The full log: {log}"])


def _remove_stale(work: Path) -> None:
    """Remove what builds left that not even their guardians could clean up after, such as in a loss of power."""
    for folder in work.iterdir():
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


def _install_wheel(
    cache: Cache, wheel: Path, here: Target, options: Options, environ: Mapping[str, str], on_progress: OnProgress
) -> None:
    log = cache.log(f"install-{recipe.key(here, options)}")
    with _runner(cache, log, keep=False, verb="installed") as runner:
        on_progress("installing", None)
        pip = [here.python, "-m", "pip", "install"]
        quiet = {
            **recipe.clean(environ),
            "PIP_NO_INPUT": "1",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "LC_ALL": "C.UTF-8",
        }
        replace = [*pip, "--force-reinstall", "--no-deps", "--no-index", str(wheel)]
        runner.run(replace, environ=quiet, cwd=runner.guard.directory, timeout_seconds=_INSTALL_SECONDS)
        needed = [*recipe.RUNTIME, *((gpu.nccl_of(here.package),) if options.cuda else ())]
        missing = [need for need in needed if not _is_installed(Requirement(need).name)]
        if missing:
            runner.run([*pip, *missing], environ=quiet, cwd=runner.guard.directory, timeout_seconds=_INSTALL_SECONDS)
        on_progress("checking", None)
        proof = prove(environ, timeout_seconds=_PROVE_SECONDS)
        runner.log.write(proof.output)
        _require(proof, options)


def _is_installed(name: str) -> bool:
    try:
        return bool(importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def _require(proof: Proof, options: Options) -> None:
    if proof.error:
        raise TfdistError(f"the library does not work here: {proof.error}. Build it anew with --force.")
    if set(proof.built_in) != set(options.built_in):
        raise TfdistError(f"the library has {proof.built_in}, not {options.built_in}. Build it anew with --force.")
