"""The design, checked on the source: layers, the monopoly of `compat`, who may load TensorFlow, size, documentation."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tfdist.strategies import registry

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tfdist"
RECIPES = ROOT / "strategies"

# A module imports packages of lower layers, or its own package. docs/design.md has the reasons.
LAYERS = {
    "": 0,
    "errors": 0,
    "validation": 0,
    "cache": 0,
    "compat": 1,
    "cluster": 1,
    "monitor": 1,
    "native": 1,
    "launch": 2,
    "collectives": 2,
    "coordination": 2,
    "compression": 2,
    "data": 2,
    "checkpoint": 3,
    "training": 3,
    "optimizers": 4,
    "strategies": 4,
    "parallel": 4,
    "callbacks": 5,
    "planner": 5,
    "reproducibility": 5,
    "build": 5,
    "testing": 6,
    "doctor": 6,
    "bench": 7,
    "verify": 7,
    "tune": 8,
    "cli": 9,
    "__main__": 10,
}
# The registry is a table of names that anybody may read, and any part of a worker may tell the agent how far it is, and
# meets faults on purpose: these stand as low as what they import.
LAYER_OF_MODULE = {"tfdist.strategies.registry": 1, "tfdist.launch.faults": 1, "tfdist.launch.progress": 1}

LOADS_NO_TENSORFLOW = (
    *("", "errors", "validation", "cache", "cluster", "monitor", "native", "launch", "cli", "build", "doctor"),
    "checkpoint",
    "tune",
    "__main__",
)
FRAMEWORKS = ("tensorflow", "keras", "horovod")
PRIVATE_MODULES = ("tensorflow.python", "tensorflow.core", "keras.src", "horovod._", "horovod.tensorflow.mpi_ops")

LONGEST_FILE = 500
LONGEST_RECIPE = 120
FOLDER_OF_STRATEGY = {
    "mirrored": "mirrored",
    "multi-worker": "multi_worker_mirrored",
    "ring": "ring_all_reduce",
    "parameter-server": "parameter_server",
}


def package_of(module: str) -> str:
    """The part of tfdist that a module belongs to: `tfdist.cluster.ports` -> `cluster`, `tfdist` -> ``."""
    return module.split(".")[1] if "." in module else ""


@dataclass(frozen=True)
class Source:
    """One Python file of the package."""

    path: Path
    module: str
    tree: ast.Module

    @property
    def package(self) -> str:
        """The part of tfdist it belongs to."""
        return package_of(self.module)

    def where(self, node: ast.AST) -> str:
        return f"{self.path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def sources() -> tuple[Source, ...]:
    return tuple(
        Source(path=path, module=module_name(path), tree=ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(PACKAGE.rglob("*.py"))
    )


def imported_modules(source: Source) -> Iterator[tuple[ast.AST, str]]:
    """What a file imports anywhere in it, also inside functions; `from a import b` and the lazy `tfdist.a` count."""
    is_package = source.path.name == "__init__.py"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = source.module.split(".")
                parents = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            for alias in node.names:
                yield node, f"{base}.{alias.name}"
        elif isinstance(node, ast.Attribute) and (chain := dotted(node)).startswith("tfdist."):
            yield node, chain


def layer(module: str) -> int:
    """The layer of a module of tfdist, or of a name in it."""
    for name, number in LAYER_OF_MODULE.items():
        if module == name or module.startswith(f"{name}."):
            return number
    return LAYERS.get(package_of(module), LAYERS[""])  # `tfdist.__version__` is a name of the package itself


def dotted(node: ast.AST) -> str:
    """A dotted chain of attributes, such as `tf.distribute.Strategy`; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def test_every_package_has_a_layer() -> None:
    homeless = {source.package for source in sources()} - LAYERS.keys()
    assert not homeless, f"no layer for {sorted(homeless)}: add it here and in docs/design.md"


def test_imports_go_down() -> None:
    wrong = [
        f"{source.where(node)}: layer {layer(source.module)} imports {target} of layer {layer(target)}"
        for source in sources()
        for node, target in imported_modules(source)
        if (target == "tfdist" or target.startswith("tfdist."))
        and package_of(target) != source.package
        and layer(target) >= layer(source.module)
        and layer(target) > 0
    ]
    assert not wrong, "\n".join(wrong)


def test_nobody_imports_recipes_or_tests() -> None:
    wrong = [
        f"{source.where(node)}: imports {target}"
        for source in sources()
        for node, target in imported_modules(source)
        if target.split(".")[0] in ("strategies", "tests")
    ]
    assert not wrong, "\n".join(wrong)


def is_private_attribute(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(source: Source) -> Iterator[str]:
    """Private names of the frameworks in a file: imports, chains such as `tf._x`, and module names in strings."""
    frameworks: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.name if isinstance(node, ast.Import) else f"{node.module or ''}.{alias.name}"
                if name.split(".")[0] in FRAMEWORKS and not getattr(node, "level", 0):
                    frameworks.add((alias.asname or alias.name).split(".")[0])
                    if name.startswith(PRIVATE_MODULES) or any(map(is_private_attribute, name.split("."))):
                        yield f"{source.where(node)}: imports {name}"
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute):
            chain = dotted(node)
            if chain.split(".")[0] in frameworks and (is_private_attribute(node.attr) or ".python." in f"{chain}."):
                yield f"{source.where(node)}: uses {chain}"
        elif isinstance(node, ast.Call):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith(PRIVATE_MODULES):
                    yield f"{source.where(node)}: names {argument.value}"


def test_only_compat_touches_private_names() -> None:
    wrong = [line for source in sources() if source.package != "compat" for line in private_names(source)]
    assert not wrong, "private names belong into tfdist/compat:\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    "code",
    [
        "from tensorflow.python.eager import context",
        "from keras.src import losses",
        "import keras.src.losses as l",
        "import tensorflow as tf\nx = tf.distribute._private()",
        "import tensorflow as tf\nx = tf.python.ops",
        "from keras.models import _hidden",
        "import importlib\nm = importlib.import_module('tensorflow.python.ops')",
    ],
)
def test_private_names_are_seen(code: str) -> None:
    assert list(private_names(Source(path=PACKAGE / "x.py", module="tfdist.x", tree=ast.parse(code))))


@pytest.mark.parametrize(
    "code",
    [
        "import tensorflow as tf\nx = tf.distribute.get_strategy()",
        "import tensorflow as tf\nx = tf.__version__",
        "class A:\n    def f(self):\n        return self._x",
    ],
)
def test_public_names_are_not_taken_for_private(code: str) -> None:
    assert not list(private_names(Source(path=PACKAGE / "x.py", module="tfdist.x", tree=ast.parse(code))))


def test_relative_and_nested_imports_are_seen() -> None:
    code = "from . import a\nfrom ..cluster import b\ndef f():\n    import tfdist.cli.main\n    tfdist.verify"
    source = Source(path=PACKAGE / "launch" / "x.py", module="tfdist.launch.x", tree=ast.parse(code))
    assert [target for _, target in imported_modules(source)] == [
        "tfdist.launch.a",
        "tfdist.cluster.b",
        "tfdist.cli.main",
        "tfdist.verify",
    ]


IMPORT_ALL = """
import importlib, os, sys
before, path = dict(os.environ), list(sys.path)
import tfdist
for name in sys.argv[1:]:
    importlib.import_module(name)
loaded = sorted({module.split(".")[0] for module in sys.modules} & {"tensorflow", "keras", "horovod", "tf_keras"})
changed = sorted(name for name in before.keys() | os.environ.keys() if before.get(name) != os.environ.get(name))
print("loaded", *loaded)
print("changed", *changed)
"""


@pytest.mark.timeout(60)
def test_these_modules_load_no_tensorflow_and_set_no_variable() -> None:
    modules = [s.module for s in sources() if s.package in LOADS_NO_TENSORFLOW or s.module in LAYER_OF_MODULE]
    assert "tfdist.cluster.ports" in modules
    assert "tfdist.strategies.registry" in modules
    command = [sys.executable, "-c", IMPORT_ALL, *modules]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["loaded", "changed"]


def public_definitions(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node.body, f"{prefix}{node.name}.")


def _documented_by_decorator(node: ast.AST) -> bool:
    """An override has its parent's documentation, `@feature("...")` carries its own."""
    for decorator in getattr(node, "decorator_list", []):
        call = decorator.func if isinstance(decorator, ast.Call) else decorator
        if dotted(call).split(".")[-1] in ("override", "overload", "setter", "feature"):
            return True
    return False


def undocumented(source: Source) -> Iterator[str]:
    if not ast.get_docstring(source.tree):
        yield f"{source.where(source.tree)}: the module"
    private = any(part.startswith("_") and not part.startswith("__") for part in source.module.split("."))
    for name, node in () if private else public_definitions(source.tree.body):
        if not _documented_by_decorator(node) and not ast.get_docstring(node):  # type: ignore[arg-type]
            yield f"{source.where(node)}: {name}"


def test_public_names_are_documented() -> None:
    missing = [line for source in sources() for line in undocumented(source)]
    assert not missing, "no docstring:\n" + "\n".join(missing)


def test_files_are_short() -> None:
    files = [*PACKAGE.rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *RECIPES.rglob("*.py")]
    long = {str(f.relative_to(ROOT)): n for f in files if (n := len(f.read_text().splitlines())) > LONGEST_FILE}
    assert not long, f"longer than {LONGEST_FILE} lines, split them by idea: {long}"


def test_every_strategy_has_a_recipe() -> None:
    missing = [name for name in registry.names() if name not in FOLDER_OF_STRATEGY]
    assert not missing, f"name the recipe folder of {missing} in FOLDER_OF_STRATEGY"
    for name in registry.names():
        folder = RECIPES / FOLDER_OF_STRATEGY[name]
        for required in ("README.md", "train.py"):
            assert (folder / required).is_file(), f"strategy {name!r} needs {folder.relative_to(ROOT)}/{required}"


def test_recipes_are_short_and_no_package() -> None:
    recipes = list(RECIPES.glob("*/train.py"))
    assert recipes
    for recipe in recipes:
        lines = len(recipe.read_text().splitlines())
        assert lines <= LONGEST_RECIPE, f"{recipe.relative_to(ROOT)}: {lines} lines, {LONGEST_RECIPE} is the end"
    assert not list(RECIPES.rglob("__init__.py"))


def test_recipe_cards_have_their_sections() -> None:
    for recipe in RECIPES.glob("*/train.py"):
        card = (recipe.parent / "README.md").read_text()
        for section in ("Implemented in", "## When to use it", "## When not", "## Cost", "## Failure", "## Measured"):
            assert section in card, f"{recipe.parent.name}/README.md has no {section!r}"
