"""The command `tfdist build horovod`."""

import time
from pathlib import Path

import click
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn

from tfdist.cli.common.command import Command
from tfdist.cli.common.progress import Watch, unwinding
from tfdist_horovod import Options, Outcome, gpu, install, mpi_for_build

_STEP_PERCENT = 10  # of the compilation, for a line where there is no terminal


@click.command(
    "horovod",
    cls=Command,
    short_help="Install Horovod, built for the TensorFlow of this Python environment.",
    examples={
        "tfdist build horovod": "minutes the first time, seconds from the cache",
        "tfdist build horovod --gpu": "with NCCL, for drivers of CUDA 13 (580 and later)",
        "tfdist build horovod --mpi": "with MPI, for mpirun",
        "tfdist build horovod --no-install": "fill the cache, for instance while an image is made",
    },
    page="horovod",
    epilog="Exit code: 0 when Horovod works, 1 when it was not built, 2 when the request makes no sense.",
)
@click.option("--gpu", "with_gpu", is_flag=True, help="Build NCCL in; CUDA's compiler and NCCL come as wheels.")
@click.option(
    "--cuda-home",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="FOLDER",
    help="With --gpu: compile with the CUDA toolkit in this folder.",
)
@click.option("--mpi", "with_mpi", is_flag=True, help="Build MPI in, for mpirun; Open MPI comes as a wheel.")
@click.option(
    "--mpi-home",
    type=click.Path(file_okay=False, exists=True, path_type=Path),
    metavar="FOLDER",
    help="With --mpi: the MPI in this folder.",
)
@click.option("--force", is_flag=True, help="Build anew, whatever is installed or kept.")
@click.option("--no-install", "only_cache", is_flag=True, help="Make and keep the wheel, install nothing.")
@click.option(
    "--jobs", type=click.IntRange(1), metavar="N", help="Files compiled at once; as memory allows by default."
)
@click.option(
    "--log",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write here what the programs of the build say; without it the log is kept when the build fails.",
)
def command(
    with_gpu: bool,
    cuda_home: Path | None,
    with_mpi: bool,
    mpi_home: Path | None,
    force: bool,
    only_cache: bool,
    jobs: int | None,
    log: Path | None,
) -> None:
    """Install Horovod 0.28.1, built for the TensorFlow of this Python environment.

    pip cannot: Horovod has no wheels, and its sources do not compile under today's TensorFlow, setuptools and CMake.
    This builds them from the archive in the package index, checked by its SHA-256, in a temporary folder with tools of
    its own; this environment gets the finished wheel and what it needs at run time. Then a child process imports it and
    reduces a tensor.

    It needs a C++ compiler (g++) and make on PATH, and the package index; neither root nor packages of the system.

    The wheel is kept per versions of Horovod, TensorFlow, Python, C library and options in TFDIST_CACHE_DIR, else
    $XDG_CACHE_HOME/tfdist, else ~/.cache/tfdist. Of two builds of the same at once the second waits for the first.
    An installed Horovod that was built for another TensorFlow is replaced; one with more built in than was asked for
    stays, and so does one of another source that works.
    """
    if cuda_home and not with_gpu:
        raise click.UsageError("--cuda-home is a part of --gpu, which was not given.")
    if mpi_home and not with_mpi:
        raise click.UsageError("--mpi-home is a part of --mpi, which was not given.")
    options = Options(
        cuda=gpu.toolkit(cuda_home) if with_gpu else None, mpi=mpi_for_build.toolkit(mpi_home) if with_mpi else None
    )
    started = time.monotonic()
    with unwinding(), _Watch() as watch:
        outcome = install(
            options,
            force=force,
            only_cache=only_cache,
            jobs=jobs,
            log=log,
            on_progress=watch.show,
        )
    click.echo(described(outcome, seconds=time.monotonic() - started))


def described(outcome: Outcome, *, seconds: float) -> str:
    """Return a description of the outcome, in a line or two.

    Example:
        >>> outcome = Outcome(version="0.28.1", tensorflow="2.21.0", built_in=("gloo",), was="installed")
        >>> described(outcome, seconds=0.1)
        'Horovod 0.28.1 for TensorFlow 2.21.0 is installed, built with gloo.'
    """
    words = {"installed": "is installed", "cached": "came from the cache", "built": "was built"}[outcome.was]
    line = f"Horovod {outcome.version} for TensorFlow {outcome.tensorflow} {words}, built with "
    line += ", ".join(outcome.built_in)
    if outcome.was == "installed":
        return f"{line}."
    verb = "installed and works" if outcome.is_installed else "kept"
    return f"{line}; {verb}, in {seconds:.0f} s.\nThe wheel: {outcome.wheel}"


class _Watch(Watch):
    """Shows on standard error how far the build is: a bar on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        super().__init__(TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
        self._task = self.progress.add_task("starting", total=None)
        self._stage, self._step = "", 0

    def show(self, stage: str, part: float | None) -> None:
        """Show a stage, and the part of it that is done where it is known."""
        self.progress.update(self._task, description=stage, total=None if part is None else 1.0, completed=part or 0.0)
        step = round(100 * (part or 0.0)) // _STEP_PERCENT
        if not self.is_terminal and (stage, step) != (self._stage, self._step):
            click.echo(stage if part is None else f"{stage} {part:.0%}", err=True)
        self._stage, self._step = stage, step
