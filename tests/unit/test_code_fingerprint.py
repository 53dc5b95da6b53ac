"""A digest changes with all that code can reach, is the same in every process, and is refused where it could not be."""

import os
import subprocess
import sys
import textwrap
import types
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from tfdist.training.checks import code_fingerprint
from tfdist.training.checks.code_fingerprint import OpaqueError, digest_of

ROOT = Path(__file__).parents[2]
# A user's module: what is asked for is `step`, a method of an object.
SCRIPT = """
import enum, functools, math
import numpy as np

SCALE = 2.0
TABLE = {"a": 1, "b": [2, 3]}
NAMES = {"x", "y", "z"}

class Mode(enum.Enum):
    MEAN = 1
    SUM = 2

def deepest(x):
    return x + 1.0

def helper(x, *, times=3):
    return deepest(x) * times

def made(factor):
    def inner(x):
        return [(lambda y: y * factor)(one) for one in x]
    return inner

scaled = made(5)

def decorated(function):
    @functools.wraps(function)
    def around(*given):
        return function(*given)
    return around

@decorated
def wrapped(x):
    return x - 7

class Base:
    weight = 11
    def loss(self, x):
        return helper(x) * self.weight
    @staticmethod
    def still(x):
        return x / 13
    @property
    def half(self):
        return 17

class Model(Base):
    def __init__(self):
        self.alpha = 19
        self.mode = Mode.MEAN
        self.table = np.arange(3)
        self.parts = [Part(23)]
    def step(self, x):
        found = x in NAMES and math.sqrt(4)
        return super().loss(x) + SCALE * TABLE["a"] + self.still(scaled(x)) + wrapped(x)

class Part:
    __slots__ = ("size",)
    def __init__(self, size):
        self.size = size
"""


def model_of(source: str, name: str = "a_users_script") -> Any:
    """Run a module that is in no file, and return its model."""
    given: dict[str, Any] = {"__name__": name}
    exec(compile(source, "a_users_script.py", "exec"), given)  # noqa: S102
    return given["Model"]()


def digest(source: str) -> str:
    return digest_of([model_of(source).step])


CHANGES = {
    "a constant": ("math.sqrt(4)", "math.sqrt(5)"),
    "a number's type": ("SCALE = 2.0", "SCALE = 2"),
    "a global": ("SCALE = 2.0", "SCALE = 3.0"),
    "a value in a table": ('"b": [2, 3]', '"b": [2, 4]'),
    "a set": ('"y", "z"}', '"y", "w"}'),
    "a default": ("times=3", "times=4"),
    "a helper": ("deepest(x) * times", "deepest(x) - times"),
    "a helper of a helper": ("x + 1.0", "x + 2.0"),
    "a closure": ("made(5)", "made(6)"),
    "a nested lambda": ("lambda y: y * factor", "lambda y: y + factor"),
    "what a decorator holds": ("x - 7", "x - 8"),
    "a method of a base class": ("helper(x) * self.weight", "helper(x) / self.weight"),
    "an attribute of a base class": ("weight = 11", "weight = 12"),
    "a static method": ("x / 13", "x / 14"),
    "a property": ("return 17", "return 18"),
    "an attribute": ("self.alpha = 19", "self.alpha = 20"),
    "a member": ("self.mode = Mode.MEAN", "self.mode = Mode.SUM"),
    "an array": ("np.arange(3)", "np.arange(4)"),
    "an object in a list": ("Part(23)", "Part(24)"),
    "a slot": ("self.size = size", "self.size = size + 1"),
    "a base class": ("class Model(Base)", "class Other(Base):\n    pass\nclass Model(Other)"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_of_what_code_reaches_is_seen(what: str) -> None:
    before, after = CHANGES[what]
    assert before in SCRIPT
    assert digest(SCRIPT) != digest(SCRIPT.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("SCALE = 2.0", "\n\n# a comment\nSCALE = 2.0"),
        ("def deepest", "def unused(x):\n    return open(x)\n\ndef deepest"),
        ("weight = 11", "weight: int = 11"),
    ],
    ids=["lines", "a function that is not reached", "an annotation"],
)
def test_what_changes_nothing_is_not_seen(before: str, after: str) -> None:
    assert digest(SCRIPT) == digest(SCRIPT.replace(before, after))


def test_a_module_of_the_user_s_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest_with(body: str) -> str:
        module = types.ModuleType("a_users_module")
        exec(compile(body, "a_users_module.py", "exec"), vars(module))  # noqa: S102
        monkeypatch.setitem(sys.modules, "a_users_module", module)
        given: dict[str, Any] = {"a_users_module": module, "__name__": "a_users_script"}
        exec("def step(x):\n    return a_users_module.loss(x) * a_users_module.BETA", given)  # noqa: S102
        return digest_of([given["step"]])

    whole = "BETA = 1\ndef loss(x):\n    return inner(x)\ndef inner(x):\n    return x\n"
    seen = [digest_with(whole), digest_with(whole.replace("BETA = 1", "BETA = 2"))]
    seen.append(digest_with(whole.replace("return x\n", "return -x\n")))
    assert len(set(seen)) == 3
    assert digest_with(whole + "OTHER = 5\n") == seen[0]


PROGRAM = """
import sys, tests.unit.test_code_fingerprint as one
print(one.digest(one.SCRIPT))
"""


def test_another_process_has_the_same_digest() -> None:
    found = set()
    for seed in ("1", "2"):
        environ = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        found.add(done.stdout.strip())
    assert found == {digest(SCRIPT)}


def test_a_module_that_was_compiled_before_has_the_same_digest(tmp_path: Path) -> None:
    (tmp_path / "kept_module.py").write_text(SCRIPT)
    program = textwrap.dedent("""
        import kept_module
        from tfdist.training.checks.code_fingerprint import digest_of
        print(digest_of([kept_module.Model().step]))
    """)
    environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    command = [sys.executable, "-c", program]
    runs = [subprocess.run(command, env=environ, capture_output=True, text=True, timeout=200) for _ in range(2)]
    assert all(run.returncode == 0 for run in runs), [run.stderr for run in runs]
    assert list((tmp_path / "__pycache__").iterdir()), "the second process has read what the first one compiled"
    assert len({run.stdout for run in runs}) == 1


OPAQUE = {
    "the environment": "import os\ndef step(x):\n    return os.environ['LOSS']",
    "a file": "def step(x):\n    return open('settings').read()",
    "random numbers": "import random\ndef step(x):\n    return random.random()",
    "the clock": "import time\ndef step(x):\n    return time.time()",
    "code in a text": "def step(x):\n    return eval('x + 1')",
    "a global that it changes": "N = 0\ndef step(x):\n    global N\n    N += 1",
    "a module as a whole": "import a_users_module\ndef step(x):\n    return getattr(a_users_module, x)",
    "an import of the user's": "def step(x):\n    import a_users_module\n    return a_users_module.loss(x)",
    "a generator of numbers": "import numpy as np\nG = np.random.default_rng(1)\ndef step(x):\n    return G.random()",
    "a thread's lock": "import threading\nL = threading.Lock()\ndef step(x):\n    return L",
    "a set of objects": "S = {(1, object())}\ndef step(x):\n    return S",
}


@pytest.mark.parametrize("what", OPAQUE)
def test_what_a_digest_cannot_stand_for_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a_users_module", types.ModuleType("a_users_module"))
    given: dict[str, Any] = {"__name__": "a_users_script"}
    exec(OPAQUE[what], given)  # noqa: S102
    with pytest.raises(OpaqueError):
        digest_of([given["step"]])


SIMPLE = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
VALUES = st.recursive(
    SIMPLE, lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@hypothesis.given(VALUES, VALUES)
def test_values_are_told_apart(one: Any, other: Any) -> None:
    assert (digest_of([one]) == digest_of([other])) == (repr(one) == repr(other))


@hypothesis.given(VALUES)
def test_an_attribute_is_a_value(value: Any) -> None:
    def digest_with(one: Any) -> str:
        return digest_of([types.SimpleNamespace(kept=one)])

    assert digest_with(value) != digest_with([value])


def test_cycles_end() -> None:
    one: list[Any] = [1]
    one.append(one)
    other: list[Any] = [2]
    other.append(other)
    assert digest_of([one]) != digest_of([other])


def test_code_of_libraries_stands_for_itself_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_version(version: str) -> str:
        code_fingerprint._library_of_file.cache_clear()
        code_fingerprint._version.cache_clear()
        monkeypatch.setattr(code_fingerprint.importlib.metadata, "version", lambda name: version)
        return digest_of([lambda x: np.mean(x)])

    try:
        assert with_version("1.0") != with_version("1.1")
    finally:
        monkeypatch.undo()
        code_fingerprint._library_of_file.cache_clear()
        code_fingerprint._version.cache_clear()
