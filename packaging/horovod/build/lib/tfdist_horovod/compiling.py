"""The build of a wheel that works: fetch, prepare, configure, compile and check it, in one temporary folder.

Example:
    >>> progress_of("[ 42%] Building CXX object horovod/tensorflow/CMakeFiles/tensorflow.dir/mpi_ops.cc.o")
    0.42
"""

import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfdist.errors import UnsupportedError
from tfdist.native.build_target import Target
from tfdist.native.horovod_record import RECORD
from tfdist_horovod import edits, gpu, installed, mpi_for_build, recipe, wheels
from tfdist_horovod.edits import Edit
from tfdist_horovod.program import ProgramError, Runner
from tfdist_horovod.recipe import Extra, Folders, Options, Toolkit

_FETCH_SECONDS = 1800.0
_BUILD_SECONDS = 7200.0
_CHECK_SECONDS = 300.0

OnProgress = Callable[[str, float | None], None]
"""Called with the name of a stage and, where it is known, the part of it that is done."""


@dataclass(frozen=True, kw_only=True)
class Build:
    """One build.

    Attributes:
        target: what for.
        options: what is built in.
        jobs: how many files are compiled at once.
        inherited: this process' environment.
        runner: runs the programs, and owns the temporary folder.
        on_progress: told of every stage.
    """

    target: Target
    options: Options
    jobs: int
    inherited: Mapping[str, str]
    runner: Runner
    on_progress: OnProgress

    def wheel(self) -> Path:
        """Return a new wheel in the temporary folder; the library in it was loaded and has reduced a tensor."""
        folders = self._folders()
        environ = recipe.environment(self.inherited, folders, self.options, jobs=self.jobs)
        self.on_progress("fetching", None)
        self._fetch_packages(recipe.TOOLS, folders.tools, environ)
        sources = self._fetch_sources(environ)
        extras = self._fetch_extras(environ)
        self.on_progress("preparing", None)
        edits.apply(changes_for(self.options), sources)
        environ = recipe.environment(self.inherited, folders, self.options, jobs=self.jobs, extras=extras)
        made = self._compile(sources, environ)
        self.on_progress("checking", None)
        wheel = self._root / recipe.wheel_name(self.target)
        record = installed.record_of(self.target, self.options)
        wheels.add_to_metadata(made, RECORD, record.to_json(), destination=wheel)
        self._check(wheel, environ)
        return wheel

    @property
    def _root(self) -> Path:
        return self.runner.guard.directory

    def _folders(self) -> Folders:
        folders = Folders(
            tools=self._root / "tools", libraries=self._root / "libraries", temporary=self._root / "temporary"
        )
        folders.tools.mkdir()
        folders.temporary.mkdir()
        folders.libraries.symlink_to(self.target.root, target_is_directory=True)
        return folders

    def _python(
        self, arguments: Sequence[str], environ: Mapping[str, str], *, cwd: Path, timeout_seconds: float
    ) -> None:
        self.runner.run([self.target.python, *arguments], environ=environ, cwd=cwd, timeout_seconds=timeout_seconds)

    def _fetch_packages(self, requirements: Iterable[str], folder: Path, environ: Mapping[str, str]) -> None:
        arguments = ["-m", "pip", "install", "--no-compile", "--only-binary", ":all:", "--target", str(folder)]
        self._python([*arguments, *requirements], environ, cwd=self._root, timeout_seconds=_FETCH_SECONDS)

    def _fetch_sources(self, environ: Mapping[str, str]) -> Path:
        archives = self._root / "archives"
        wanted = self._root / "requirements.txt"
        wanted.write_text(f"horovod=={recipe.VERSION} --hash=sha256:{recipe.SHA256}\n", encoding="utf-8")
        arguments = ["-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary", "horovod"]
        arguments += ["--require-hashes", "--requirement", str(wanted), "--dest", str(archives)]
        self._python(arguments, environ, cwd=self._root, timeout_seconds=_FETCH_SECONDS)
        (archive,) = archives.iterdir()
        with tarfile.open(archive) as packed:
            packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, path: member)
            packed.extractall(self._root / "sources")
        return self._root / "sources" / f"horovod-{recipe.VERSION}"

    def _fetch_extras(self, environ: Mapping[str, str]) -> list[Extra]:
        cuda, with_mpi = self.options.cuda, self.options.mpi
        extras = [self._fetch_cuda(cuda, environ)] if cuda else []
        return [*extras, self._fetch_mpi(with_mpi, environ)] if with_mpi else extras

    def _fetch_mpi(self, chosen: Toolkit, environ: Mapping[str, str]) -> Extra:
        if chosen.home:
            return mpi_for_build.extra(chosen.home)
        home = self._root / "mpi"
        arguments = ["-m", "pip", "install", "--ignore-installed", "--no-deps", "--only-binary", ":all:"]
        arguments += [
            "--prefix",
            str(home),
            mpi_for_build.WHEEL,
        ]  # its files are those of an environment, not of a package
        self._python(arguments, environ, cwd=self._root, timeout_seconds=_FETCH_SECONDS)
        return mpi_for_build.extra(home)

    def _fetch_cuda(self, cuda: Toolkit, environ: Mapping[str, str]) -> Extra:
        """NCCL is taken from where it is installed, so that a build in an environment for GPUs fetches it not again."""
        packages = self._root / "cuda"
        here = (self.target.root / gpu.NCCL / "lib" / "libnccl.so.2").exists()
        wanted = [*(() if cuda.home else gpu.COMPILER), *(() if here else (gpu.nccl_of(self.target.package),))]
        if wanted:
            self._fetch_packages(["--no-deps", *wanted], packages, environ)
        home = cuda.home or gpu.link_toolkit(packages)
        nccl = (self.target.root if here else packages) / gpu.NCCL
        return gpu.extra(home, gpu.link_nccl(nccl, self._unpacked / gpu.NCCL))  # where the check will look for it

    @property
    def _unpacked(self) -> Path:
        return self._root / "unpacked"

    def _compile(self, sources: Path, environ: Mapping[str, str]) -> Path:
        self.on_progress("configuring", None)
        done = 0.0

        def follow(line: str) -> None:
            nonlocal done
            part = progress_of(line)
            if part is not None and part >= done:  # several makes run one after the other
                done = part
                self.on_progress("compiling", done)

        self.runner.run(
            [self.target.python, "setup.py", "bdist_wheel", "--dist-dir", str(self._root / "made")],
            environ=environ,
            cwd=sources,
            timeout_seconds=_BUILD_SECONDS,
            on_line=follow,
        )
        made = list((self._root / "made").glob("*.whl"))
        if [wheel.name for wheel in made] != [recipe.wheel_name(self.target)]:
            raise UnsupportedError(
                f"the build made {[wheel.name for wheel in made]}, and was to make {recipe.wheel_name(self.target)}."
            )
        return made[0]

    def _check(self, wheel: Path, environ: Mapping[str, str]) -> None:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self._unpacked)
        path = f"{self._unpacked}:{environ['PYTHONPATH']}"
        lines: list[str] = []
        self.runner.run(
            installed.proof_command(),
            # without GPUs: the wheel is good also if the driver of this machine is not
            environ=installed.proof_environment({**environ, "PYTHONPATH": path}, on_gpus=False),
            cwd=self._root,
            timeout_seconds=_CHECK_SECONDS,
            on_line=lines.append,
        )
        proof = installed.interpret(lines, 0)
        if proof.error or set(proof.built_in) != set(self.options.built_in):
            raise ProgramError(
                f"the library has {', '.join(proof.built_in) or proof.error}, "
                f"and was to have {', '.join(self.options.built_in)}"
            )


def changes_for(options: Options) -> tuple[Edit, ...]:
    """Return the changes to the sources.

    Example:
        >>> len(changes_for(Options()))
        6
    """
    changes = edits.FOR_EVERYBODY + edits.FOR_TENSORFLOW + (gpu.EDITS if options.cuda else edits.FOR_CPU)
    paths = [*((gpu.RUN_PATH,) if options.cuda else ()), *((mpi_for_build.RUN_PATH,) if options.mpi else ())]
    own_mpi = options.mpi is not None and options.mpi.home is not None
    return (*changes, edits.run_path(paths, linked=own_mpi)) if paths else changes


def progress_of(line: str) -> float | None:
    """Return the finished part of the compilation by a line of make; None if the line tells none."""
    found = re.match(r"\[\s*(\d{1,3})%\]", line)
    return int(found[1]) / 100 if found else None
