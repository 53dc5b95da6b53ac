"""Pairs of TensorFlow and Keras: tested, in range, or neither. Plain data and a pure function, without TensorFlow."""

import enum
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

#: the ranges for installed versions; setup.py gives pip the same
TENSORFLOW = ">=2.16.2,<2.23"
KERAS = ">=3.15,<3.16"


@dataclass(frozen=True)
class Pair:
    """One version of TensorFlow with one of Keras."""

    tensorflow: str
    keras: str

    def __str__(self) -> str:
        return f"TensorFlow {self.tensorflow} with Keras {self.keras}"


#: the pair that every test runs on
MAIN = Pair("2.21.0", "3.15.1")

#: pairs on which `make compat` was green, the main one first; docs/compatibility.md has what was run, and when
TESTED = (
    MAIN,
    Pair("2.22.0rc0", "3.15.1"),
    Pair("2.20.0", "3.15.1"),
    Pair("2.19.1", "3.15.1"),
    Pair("2.18.1", "3.15.1"),
    Pair("2.17.1", "3.15.1"),
    Pair("2.16.2", "3.15.1"),
    Pair("2.16.2", "3.15.0"),
)
_PAGE = "docs/compatibility.md"


class Standing(enum.Enum):
    """The support for a pair of versions."""

    TESTED = "tested"
    UNTESTED = "untested but in range"
    OUT_OF_RANGE = "out of range"


@dataclass(frozen=True)
class Judgement:
    """The standing of an installed pair; `text` is a sentence that says what was found and what is required."""

    pair: Pair
    standing: Standing
    text: str


def judge(tensorflow: str, keras: str) -> Judgement:
    """Judge a pair of versions. Local parts (``2.21.0+nv25.1``) are ignored; unreadable versions are out of range."""
    pair = Pair(tensorflow, keras)
    if not (_contains(TENSORFLOW, tensorflow) and _contains(KERAS, keras)):
        text = f"{pair} is out of range: tfdist needs TensorFlow {TENSORFLOW} and Keras {KERAS}"
        return Judgement(pair, Standing.OUT_OF_RANGE, text)
    if Pair(Version(tensorflow).public, Version(keras).public) in TESTED:
        return Judgement(pair, Standing.TESTED, f"{pair} was tested ({_PAGE})")
    return Judgement(pair, Standing.UNTESTED, f"{pair} is in range but was not tested; tested: {_tested()} ({_PAGE})")


def _tested() -> str:
    by_keras: dict[str, list[str]] = {}
    for pair in TESTED:
        by_keras.setdefault(pair.keras, []).append(pair.tensorflow)
    return "; ".join(f"TensorFlow {', '.join(known)} with Keras {keras}" for keras, known in by_keras.items())


def _contains(specifier: str, version: str) -> bool:
    try:
        return SpecifierSet(specifier).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False
