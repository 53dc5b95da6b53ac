"""`tfdist build horovod`: look at what is installed, take the wheel from the cache or build it, install it, prove it.

Example:
    >>> install().built_in  # doctest: +SKIP
    ('gloo',)
"""

import importlib.metadata
import os
import sysconfig
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
from packaging.requirements import Requirement

from tfdist.cache import folder, locked, locked_folder, remove_stale
from tfdist.errors import TfdistError
from tfdist.native.build_target import Target, observe
from tfdist.native.horovod_record import find_installed
from tfdist_horovod import build_tools, gpu, mpi_for_build, recipe
from tfdist_horovod.compiling import Build, OnProgress
from tfdist_horovod.installed import Proof, misfit, prove
from tfdist_horovod.recipe import Options
from tfdist_horovod.wheel_cache import Cache, open_cache
from tfdist_horovod.workspace import workshop

_INSTALL_SECONDS = 600.0
_PROVE_SECONDS = 300.0
_WAIT_SECONDS = 3 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of `install`.

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
    request = _Request(
        options=options or Options(),
        here=observe(),
        environ=os.environ if environ is None else environ,
        on_progress=on_progress,
    )
    if not force and not only_cache:
        kept = _kept(request)
        if kept:
            return kept
    kept_wheel = None if force else request.kept_wheel()
    wheel = kept_wheel or _build(request, force=force, jobs=jobs, log=log)
    if not only_cache:
        kept = _install_alone(wheel.path, request)
        if kept:
            return kept
    return Outcome(
        version=recipe.VERSION,
        tensorflow=request.here.version,
        built_in=request.options.built_in,
        was=wheel.was,
        wheel=wheel.path,
        is_installed=not only_cache,
    )


@dataclass(frozen=True, kw_only=True)
class _Wheel:
    path: Path
    was: str


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The options of a build, and the target for which it is built."""

    options: Options
    here: Target
    environ: Mapping[str, str]
    on_progress: OnProgress

    @property
    def key(self) -> str:
        return recipe.key(self.here, self.options)

    def kept_wheel(self) -> _Wheel | None:
        """Return the wheel in the cache, which other users may have filled and this one may be unable to write."""
        path = Cache(folder(self.environ)).find(self.key, recipe.wheel_name(self.here))
        return _Wheel(path=path, was="cached") if path else None


def _kept(request: _Request) -> Outcome | None:
    """Return the installed Horovod if it has the options: its record tells, or a trial where another tool built it."""
    found = find_installed()
    if found is None:
        return None
    built_in: tuple[str, ...] = ()
    if found.record is not None and not misfit(found, request.here, request.options):
        built_in = found.record.built_in
    elif found.record is None and found.is_whole:
        request.on_progress("checking", None)
        built_in = prove(request.environ, on_gpus=bool(request.options.cuda), timeout_seconds=_PROVE_SECONDS).built_in
    if not set(request.options.built_in) <= set(built_in):
        return None
    return Outcome(version=found.version, tensorflow=request.here.version, built_in=built_in, was="installed")


def _build(request: _Request, *, force: bool, jobs: int | None, log: Path | None) -> _Wheel:
    """A new wheel in the cache, or the one that another process makes at the same time."""
    build_tools.require_tools(build_tools.find_tools(request.environ))
    cache, key = open_cache(request.environ), request.key

    def say(holder: str) -> None:
        request.on_progress(f"waiting for {holder}, which builds the same", None)

    with locked(cache.lock(key), timeout_seconds=_WAIT_SECONDS, on_wait=say):
        kept = None if force else request.kept_wheel()
        if kept:
            return kept
        remove_stale(cache.work)
        with workshop(cache.workplace, log or cache.log(key), keep_log=log is not None, verb="built") as runner:
            build = Build(
                target=request.here,
                options=request.options,
                jobs=jobs or _jobs(),
                inherited=request.environ,
                runner=runner,
                on_progress=request.on_progress,
            )
            return _Wheel(path=cache.put(build.wheel(), key, recipe.wheel_name(request.here)), was="built")


def _jobs() -> int:
    return recipe.jobs(processors=len(os.sched_getaffinity(0)), available_bytes=psutil.virtual_memory().available)


def _install_alone(wheel: Path, request: _Request) -> Outcome | None:
    """Install; two at once would mix their files. Return what another process installed meanwhile, if that does."""
    waited: list[str] = []

    def say(holder: str) -> None:
        waited.append(holder)
        request.on_progress(f"waiting for {holder}, which installs Horovod here", None)

    with locked_folder(Path(sysconfig.get_path("purelib")), timeout_seconds=_INSTALL_SECONDS, on_wait=say):
        kept = _kept(request) if waited else None
        if kept is None:
            _install_wheel(wheel, request)
        return kept


def _install_wheel(wheel: Path, request: _Request) -> None:
    descriptor, log = tempfile.mkstemp(prefix="tfdist-install-", suffix=".log")
    os.close(descriptor)
    with workshop(Path(tempfile.gettempdir()), Path(log), keep_log=False, verb="installed") as runner:
        request.on_progress("installing", None)
        environ = recipe.quiet_pip(request.environ)

        def pip_install(*arguments: str) -> None:
            command = [request.here.python, "-m", "pip", "install", *arguments]
            runner.run(command, environ=environ, cwd=runner.guard.directory, timeout_seconds=_INSTALL_SECONDS)

        pip_install("--force-reinstall", "--no-deps", "--no-index", str(wheel))
        missing = [need for need in _needed(request) if not _is_installed(Requirement(need).name)]
        if missing:
            pip_install(*missing)
        request.on_progress("checking", None)
        proof = prove(request.environ, on_gpus=bool(request.options.cuda), timeout_seconds=_PROVE_SECONDS)
        runner.log.write(proof.output)
        _require(proof, request.options)


def _needed(request: _Request) -> list[str]:
    """Return the run-time requirements: Horovod's own, and the libraries of its options."""
    cuda, with_mpi = request.options.cuda, request.options.mpi
    nccl = [gpu.nccl_of(request.here.package)] if cuda else []
    return [*recipe.RUNTIME, *nccl, *([mpi_for_build.WHEEL] if with_mpi and with_mpi.home is None else [])]


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
