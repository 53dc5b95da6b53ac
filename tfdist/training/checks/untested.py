"""The check of untested versions of TensorFlow and Keras: a step is compared with one device before a model trains.

The step runs in a process of its own. In this one it would need two devices, which cannot be made once TensorFlow has
started, would draw from the user's random numbers and leave variables and threads behind; and under parameter servers
or among workers there is no second replica without the others. The finding is kept in the cache, so a machine pays once
for a pair. TensorFlow is not loaded here.

Example:
    >>> decision(Standing.UNTESTED, "check")
    <Decision.CHECK: 'compare a step first'>
"""

import contextlib
import enum
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import tfdist
from tfdist import cache
from tfdist.compat import version_pairs
from tfdist.compat.version_pairs import Judgement, Standing
from tfdist.errors import TfdistError, UnsupportedError
from tfdist.variables import CACHE_DIR, NATIVE, PREFIX, UNTESTED_VERSIONS

_PROGRAM = tfdist.STEP_PROGRAM
_TIMEOUT_SECONDS = 600.0
_SHOWN_CHARACTERS = 600
# All other variables of tfdist would make the process a part of this job.
_KEPT = (CACHE_DIR.name, NATIVE.name)
_FOLDER = "versions"
_settled: set[tuple[str, str]] = set()


class Decision(enum.Enum):
    """The decision about a pair of versions."""

    USE = "use it"
    WARN = "use it at the user's risk"
    CHECK = "compare a step first"
    REFUSE = "refuse it"


def decision(standing: Standing, mode: str) -> Decision:
    """Return the decision from the standing of a pair and the value of the variable."""
    if standing is Standing.TESTED:
        return Decision.USE
    if mode == "allow":
        return Decision.WARN
    return Decision.CHECK if standing is Standing.UNTESTED else Decision.REFUSE


def require(tensorflow: str, keras: str, environ: Mapping[str, str] | None = None) -> None:
    """Raise unless models of this Keras may train in a scope of tfdist; done once in a process."""
    if (tensorflow, keras) in _settled:
        return
    environ = os.environ if environ is None else environ
    judgement = version_pairs.judge(tensorflow, keras)
    decided = decision(judgement.standing, UNTESTED_VERSIONS.read(environ))
    if decided is Decision.REFUSE:
        raise UnsupportedError(_advice(judgement.text))
    if decided is Decision.WARN:
        _say(f"{judgement.text}. It is used because {UNTESTED_VERSIONS.name} is 'allow'.")
    if decided is Decision.CHECK:
        wrong = _checked(judgement, environ)
        if wrong:
            raise UnsupportedError(_advice(f"{judgement.text}; and {wrong}"))
        _say(f"{judgement.text}. A training step of two replicas was the same as that of one device, so it is used.")
    _settled.add((tensorflow, keras))


def _advice(text: str) -> str:
    main = version_pairs.MAIN
    return (
        f"{text}. tfdist reads private names of both, so another pair may train to other weights without a word. "
        f'Install a tested one: pip install "tensorflow=={main.tensorflow}" "keras=={main.keras}". To continue at your '
        f"own risk: export {UNTESTED_VERSIONS.name}=allow."
    )


def _checked(judgement: Judgement, environ: Mapping[str, str]) -> str:
    """Return the fault of a step of this pair, empty if there is none; a known result is looked up."""
    note = _note(judgement, environ)
    if note is None:
        return compare(environ)
    locks = note.parent.parent / "locks"
    with cache.locked(locks / f"{note.name}.lock", timeout_seconds=2 * _TIMEOUT_SECONDS, on_wait=_waits):
        if note.exists():
            return ""
        wrong = compare(environ)
        if not wrong:
            with contextlib.suppress(OSError):
                note.touch()
        return wrong


def _note(judgement: Judgement, environ: Mapping[str, str]) -> Path | None:
    """Return the file that exists if a step was right; None if the cache cannot be written."""
    root = cache.folder(environ)
    try:
        cache.make(root, (_FOLDER, "locks"))
    except TfdistError:
        return None
    python = ".".join(map(str, sys.version_info[:3]))
    pair = judgement.pair
    return root / _FOLDER / f"tensorflow-{pair.tensorflow}-keras-{pair.keras}-tfdist-{tfdist.__version__}-{python}"


def compare(environ: Mapping[str, str]) -> str:
    """Train in a separate process; return the fault that appears there, empty if there is none."""
    package = str(Path(tfdist.__file__).parent.parent)
    path = os.pathsep.join(filter(None, [package, environ.get("PYTHONPATH", "")]))
    given = {name: value for name, value in environ.items() if not name.startswith(PREFIX) or name in _KEPT}
    given |= {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "-1", UNTESTED_VERSIONS.name: "allow"}
    given.pop("TF_CONFIG", None)
    try:
        done = subprocess.run(
            [sys.executable, "-m", _PROGRAM],
            env=given,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"a training step of two replicas did not end within {_TIMEOUT_SECONDS:g} s"
    except OSError as error:
        return f"a training step of two replicas could not be tried ({error})"
    if done.returncode == 0:
        return ""
    said = (done.stdout.strip() or done.stderr.strip())[-_SHOWN_CHARACTERS:]
    return f"a training step of two replicas is not that of one device ({said})"


def _waits(holder: str) -> None:
    _say(f"{holder} is comparing a training step with one device; this one waits for what it finds.")


def _say(sentence: str) -> None:
    logging.getLogger("tfdist").warning("tfdist: %s", sentence)
