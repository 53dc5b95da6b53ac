"""Whether a release is slower than the one before: the cheapest rows of the benchmarks, both releases in turns."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tfdist
from tfdist.bench.suite import Quartiles, Report, Suite, Table, Told, option, quartiles, ratio, rounds, turn, untold
from tfdist.errors import ConfigError, TfdistError
from tfdist.planner import machine
from tfdist.variables import CACHE_DIR, NO_WARM, PREFIX

BEFORE, NOW = "before", "now"
PARTS = ("alone", "workers")
_PROGRAM = Path(__file__).with_name("workers") / "guard_rows.py"
_JOB = ("-m", "tfdist", "run", "-n", "2", "--strategy", "multi-worker", "--collectives", "native")
_TURN_SECONDS = 900.0
_SHOWN = 2000


@dataclass(frozen=True, kw_only=True)
class GuardBench(Suite):
    """Measure this tfdist beside an earlier release with the same TensorFlow, in turns:

    \b
    fit, one replica                 a step of 1 ms
    fit, two workers, small          the same model over native collectives
    fit, two workers, convolutional  a step of several ms
    all-reduce of 4 KB and of 4 MB   native, between two workers
    reading shuffled rows            a pass over rows of 32 numbers

    A figure is the time before over the time now, round by round: above 1, tfdist has become faster. It belongs to a
    release: nothing else may run on the machine.
    """

    wheel: str | None = option(None, "Wheel of the release before.", metavar="FILE")
    ref: str | None = option(None, "Git tag or commit of that release, in a clone.", metavar="REF")
    rounds: int = option(5, "Measurements of each side, after one that warms up.")
    scale: int = option(10, "Work of a measurement; 1 only checks that it runs.")
    least: float = option(0.9, "Exit with 1 if a median is below this.", minimum=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.wheel is None) == (self.ref is None):
            raise ConfigError(
                f"wheel (--wheel) is {self.wheel} and ref (--ref) is {self.ref}; the release before is one of the two. "
                "Give --wheel dist/tfdist-0.1.0-py3-none-any.whl, or --ref v0.1.0."
            )

    def run(self, told: Told = untold) -> "GuardReport":
        with tempfile.TemporaryDirectory() as folder, machine.observed() as about:
            sides = {BEFORE: Path(folder, BEFORE), NOW: Path(tfdist.__file__).parents[1]}
            _unpack(self, sides[BEFORE])
            shutil.copy(_PROGRAM, folder)
            seconds: dict[str, dict[str, list[float]]] = {}
            for number, order in [(0, list(sides)), *rounds(list(sides), self.rounds)]:
                for part in PARTS:
                    for side in order:
                        told(f"{side}, {part}, {turn(number, self.rounds)}")
                        found = _measured(sides[side], part, self.scale, Path(folder))
                        for row, one in found.items() if number else ():
                            seconds.setdefault(row, {BEFORE: [], NOW: []})[side].append(one)
        return GuardReport(setup=self, seconds=seconds, machine=about)


def _unpack(setup: GuardBench, place: Path) -> None:
    """Put the package of the release before into a folder, as an installation would."""
    place.mkdir()
    if setup.wheel is not None:
        try:
            with zipfile.ZipFile(setup.wheel) as wheel:
                wheel.extractall(place)
        except (OSError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"wheel (--wheel) is {setup.wheel}, which cannot be read ({error}). Give the file that `pip download "
                "--no-deps tfdist` or `python -m build` has left.",
                name="--wheel",
                received=setup.wheel,
            ) from error
    else:
        clone = Path(tfdist.__file__).parents[1]
        archive = [
            "git",
            "-C",
            str(clone),
            "archive",
            "--format=zip",
            f"--output={place}.zip",
            str(setup.ref),
            "tfdist",
        ]
        done = subprocess.run(archive, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ConfigError(
                f"ref (--ref) is {setup.ref}, and git in {clone} has no tfdist of it: {done.stderr.strip()[-_SHOWN:]}. "
                "Give a tag or a commit of this clone, or --wheel FILE.",
                name="--ref",
                received=setup.ref,
            )
        shutil.unpack_archive(f"{place}.zip", place)
    if not (place / "tfdist" / "__init__.py").is_file():
        raise ConfigError(
            f"{setup.wheel or setup.ref} has no package tfdist. Give a wheel or a commit of tfdist.",
            name="--wheel" if setup.wheel else "--ref",
            received=setup.wheel or setup.ref,
        )


def _measured(side: Path, part: str, scale: int, folder: Path) -> dict[str, float]:
    """The seconds of each row of a part, with the tfdist in the folder of a side, each time in new processes."""
    file = folder / "seconds.json"
    file.unlink(missing_ok=True)
    job = _JOB if part == "workers" else ()
    done = subprocess.run(
        [sys.executable, *job, str(folder / _PROGRAM.name), str(file), str(scale), part],
        env=_environment(os.environ, side),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_TURN_SECONDS,
        check=False,
    )
    with contextlib.suppress(OSError, ValueError, KeyError):
        content = json.loads(file.read_text(encoding="utf-8"))
        if Path(content["tfdist"]) != side:
            raise TfdistError(f"{content['tfdist']} was measured in place of {side}.")
        return dict(content["seconds"])
    text = done.stdout.decode(errors="replace")[-_SHOWN:]
    raise TfdistError(f"{part} with the tfdist in {side} ended with {done.returncode} and measured nothing:\n{text}")


def _environment(environ: Mapping[str, str], side: Path) -> dict[str, str]:
    own = {name: value for name, value in environ.items() if not name.startswith(PREFIX) or name == CACHE_DIR.name}
    own.pop("TF_CONFIG", None)
    path = os.pathsep.join(filter(None, [str(side), environ.get("PYTHONPATH", "")]))
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "-1", NO_WARM.name: "1"}
    return {**own, **quiet, "PYTHONPATH": path}


@dataclass(frozen=True, kw_only=True)
class GuardReport(Report):
    """Seconds of each row and side, one per round."""

    setup: GuardBench
    seconds: Mapping[str, Mapping[str, Sequence[float]]]

    def ratio(self, row: str) -> Quartiles:
        """The time before over the time now."""
        return ratio(self.seconds[row][BEFORE], self.seconds[row][NOW])

    @property
    def slower(self) -> list[str]:
        """The rows whose median is below the least."""
        return [row for row in self.seconds if self.ratio(row).median < self.setup.least]

    def derived(self) -> dict[str, Any]:
        return {"ratios": {row: self.ratio(row) for row in self.seconds}, "slower": self.slower}

    def shown(self) -> Iterator[Table | str]:
        rows = []
        for row, sides in self.seconds.items():
            times = [f"{1000 * quartiles(sides[side]).median:.3g}" for side in (BEFORE, NOW)]
            rows.append([row, *times, str(self.ratio(row)), "slower" if row in self.slower else ""])
        yield Table(("", "before, ms", "now, ms", "before / now", ""), rows)
        yield f"{self.setup.rounds} rounds beside {self.setup.wheel or self.setup.ref}; {self.ran_on()}"
