"""The design, checked on the source: layers, the monopoly of `compat`, who may load TensorFlow, size, documentation."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from benchmarks.__main__ import COMMANDS
from tfdist import strategies
from tfdist.cluster import strategy_table

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tfdist"
RECIPES = ROOT / "strategies"

# A module imports packages of lower layers, or its own package. docs/design/rooms.md has the reasons.
LAYERS = {
    "": 0,
    "errors": 0,
    "validation": 0,
    "variables": 0,
    "lazy_exports": 0,
    "options": 0,
    "cache": 0,
    "resources": 0,
    "waiting": 0,
    "compat": 1,
    "cluster": 1,
    "native": 1,
    "storage": 1,
    "processes": 2,
    "monitor": 3,
    "jobs": 4,
    "collectives": 4,
    "compression": 4,
    "data": 4,
    "checkpoint": 4,
    "planner": 2,
    "gradients": 5,
    "training": 6,
    "optimizers": 7,
    "parallel": 7,
    "strategies": 8,
    "callbacks": 8,
    "reproducibility": 8,
    "build": 8,
    "doctor": 9,
    "privacy": 9,
    "federated": 10,  # accounts for noise as `privacy` does
    # What only the command line imports: none of these is part of another.
    "testing": 10,
    "engines": 10,
    "bench": 10,
    "verify": 10,
    "tune": 10,
    "search": 11,  # the face of `tune.search`
    "cli": 11,
    "launch": 12,  # the old name of `jobs`
    "__main__": 12,
}

LOADS_NO_TENSORFLOW = (
    *(
        "",
        "errors",
        "validation",
        "variables",
        "lazy_exports",
        "options",
        "cache",
        "resources",
        "waiting",
        "cluster",
        "monitor",
        "native",
        "storage",
        "jobs",
        "planner",
        "processes",
        "engines",
        "cli",
        "build",
        "doctor",
    ),
    "checkpoint",
    "tune",
    "search",
    "__main__",
)
# Functions of these are called by their names, in processes that train.
RUN_BY_WORKERS = ("tfdist.tune.sleeping_layers", "tfdist.tune.search.trial_callbacks")
FRAMEWORKS = ("tensorflow", "keras", "horovod")
PRIVATE_MODULES = ("tensorflow.python", "tensorflow.core", "keras.src", "horovod._", "horovod.tensorflow.mpi_ops")

LONGEST_FILE = 500
LONGEST_RECIPE = 120
FOLDER_OF_STRATEGY = {
    "mirrored": "mirrored",
    "multi-worker": "multi_worker_mirrored",
    "sharded-data-parallel": "sharded_data_parallel",
    "ring": "ring_all_reduce",
    "parameter-server": "parameter_server",
    "model-parallel": "model_parallel",
    "pipeline": "pipeline",
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


@cache
def walked(tree: ast.AST) -> tuple[ast.AST, ...]:
    """Return all nodes of a file. A dozen tests use the nodes of the package, and finding them takes a second."""
    return tuple(ast.walk(tree))


@cache
def imported_modules(source: Source) -> tuple[tuple[ast.AST, str], ...]:
    """Return the imports of a file, also inside functions; `from a import b` and the lazy `tfdist.a` count."""
    return tuple(_imported_modules(source))


def _imported_modules(source: Source) -> Iterator[tuple[ast.AST, str]]:
    is_package = source.path.name == "__init__.py"
    for node in walked(source.tree):
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
    return LAYERS.get(package_of(module), LAYERS[""])  # `tfdist.__version__` is a name of the package itself


def dotted(node: ast.AST) -> str:
    """A dotted chain of attributes, such as `tf.distribute.Strategy`; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def test_every_package_has_a_layer() -> None:
    packages = {source.package for source in sources()}
    homeless = packages - LAYERS.keys()
    assert not homeless, f"no layer for {sorted(homeless)}: add it here and in docs/design/rooms.md"
    assert LAYERS.keys() <= packages, f"layers of what is not there: {sorted(LAYERS.keys() - packages)}"


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


def test_no_module_imports_recipes_benchmarks_or_tests() -> None:
    wrong = [
        f"{source.where(node)}: imports {target}"
        for source in sources()
        for node, target in imported_modules(source)
        if target.split(".")[0] in ("strategies", "benchmarks", "tests")
    ]
    assert not wrong, "\n".join(wrong)


def is_private_attribute(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(source: Source) -> Iterator[str]:
    """Private names of the frameworks in a file: imports, chains such as `tf._x`, and module names in strings."""
    frameworks: set[str] = set()
    for node in walked(source.tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                name = alias.name if isinstance(node, ast.Import) else f"{node.module or ''}.{alias.name}"
                if name.split(".")[0] in FRAMEWORKS and not getattr(node, "level", 0):
                    frameworks.add((alias.asname or alias.name).split(".")[0])
                    if name.startswith(PRIVATE_MODULES) or any(map(is_private_attribute, name.split("."))):
                        yield f"{source.where(node)}: imports {name}"
    for node in walked(source.tree):
        if isinstance(node, ast.Attribute):
            chain = dotted(node)
            if chain.split(".")[0] in frameworks and (is_private_attribute(node.attr) or ".python." in f"{chain}."):
                yield f"{source.where(node)}: uses {chain}"
        elif isinstance(node, ast.Call):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and str(argument.value).startswith(PRIVATE_MODULES):
                    yield f"{source.where(node)}: names {argument.value}"


# Of Python's standard library, and documented: fields and copies of named tuples, the end of a forked process.
STANDARD = frozenset({"_asdict", "_exit", "_field_defaults", "_fields", "_make", "_replace"})
# fsspec tells implementers of file systems to override it, and has no other way to cut off a protocol.
OF_FSSPEC = frozenset({"_strip_protocol"})
# What Keras keeps in the local variables of its functions is as private as its attributes.
OF_FRAMES = frozenset({"f_locals", "_getframe"})


def attributes_by_name(node: ast.AST) -> Iterator[str]:
    """Attributes that code names in a text: `getattr(x, "_a")`, `vars(x)["_a"]`, `vars(x).get("_a")`."""
    named: ast.AST | None = None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) > 1:
        named = node.args[1] if node.func.id in ("getattr", "hasattr", "setattr", "delattr") else None
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args and is_vars(node.func.value):
        named = node.args[0]
    elif isinstance(node, ast.Subscript) and is_vars(node.value):
        named = node.slice
    if isinstance(named, ast.Constant) and isinstance(named.value, str):
        yield named.value


def is_vars(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "vars"


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names that a file defines: functions, classes, variables, attributes of `self` and `cls`."""
    found = set()
    for node in walked(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            found.add(node.attr)
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            found.update(attributes_by_name(node))
    return found


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def attributes_used(tree: ast.AST) -> Iterator[tuple[ast.AST, str, bool]]:
    """Private attributes in a file: the node, the name, and whether it is one of `self`."""
    for node in walked(tree):
        if isinstance(node, ast.Attribute):
            if node.attr in OF_FRAMES or is_private_attribute(node.attr):
                yield node, node.attr, of_self(node)
        else:
            for name in attributes_by_name(node):
                if is_private_attribute(name):
                    yield node, name, False


@cache
def names_of_tfdist() -> frozenset[str]:
    """Every name that some file of tfdist defines, outside of `compat`."""
    return frozenset().union(*(defined_names(source.tree) for source in sources() if source.package != "compat"))


@cache
def names_of_frameworks() -> frozenset[str]:
    """Private attributes that `compat` takes from objects that are not its own."""
    found: set[str] = set()
    for source in sources():
        if source.package == "compat":
            used = {name for _, name, is_own in attributes_used(source.tree) if not is_own}
            found |= used - defined_names(source.tree)
    return frozenset(found)


def private_attributes(source: Source) -> Iterator[str]:
    """Private attributes that can only be those of a framework's objects, however the object was reached.

    A file may use what it defines itself, and what another file of tfdist defines, unless `compat` knows that name as
    one of a framework's. A class may have inherited it from one of tfdist, so to `self` the last does not apply.
    """
    mine = defined_names(source.tree)
    for node, name, is_own in attributes_used(source.tree):
        if name in mine or name in STANDARD | OF_FSSPEC or name.startswith("_tfdist"):
            continue
        if name in names_of_tfdist() and (is_own or name not in names_of_frameworks()):
            continue
        yield f"{source.where(node)}: uses {name}"


def test_only_compat_touches_private_names() -> None:
    wrong = [
        line
        for source in sources()
        if source.package != "compat"
        for line in (*private_names(source), *private_attributes(source))
    ]
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
        "def f(model):\n    return model._loss_tracker",
        "def f(model):\n    return model.optimizer._get_variable_index(model.weights[0])",
        "class A:\n    def f(self, x):\n        return self._get_variable_index(x)",
        "def f(model):\n    return getattr(model, '_compile_loss', None)",
        "def f(model):\n    return vars(model)['_compile_loss']",
        "def f(model):\n    return vars(model).get('_compile_loss')",
        "def f(frame, model):\n    return frame.f_locals.get('self') is model",
        "import sys\nx = sys._getframe(1)",
        "def f(model):\n    return model._distribute_strategy",
        "def f(iterator):\n    return iterator._num_batches",
        "def f(models):\n    for model in models:\n        del model._tracker",
    ],
)
def test_private_attributes_of_objects_are_seen(code: str) -> None:
    assert list(private_attributes(Source(path=PACKAGE / "x.py", module="tfdist.x", tree=ast.parse(code))))


@pytest.mark.parametrize(
    "code",
    [
        "class A:\n    def __init__(self, other):\n        self._x_of_mine = other._x_of_mine",
        "class A:\n    def f(self):\n        vars(self)['_x_of_mine'] = 1\n        return vars(self).get('_x_of_mine')",
        "from collections import namedtuple\ndef f(row):\n    return row._replace(x=1)",
        "import os\nos._exit(1)",
        "def f(strategy):\n    return strategy._workers",
        "def f(x):\n    return x.__dict__, getattr(x, '__name__', '')",
    ],
)
def test_names_of_tfdists_own_are_not_taken_for_private(code: str) -> None:
    assert not list(private_attributes(Source(path=PACKAGE / "x.py", module="tfdist.x", tree=ast.parse(code))))


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
    source = Source(path=PACKAGE / "jobs" / "x.py", module="tfdist.jobs.x", tree=ast.parse(code))
    assert [target for _, target in imported_modules(source)] == [
        "tfdist.jobs.a",
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


def test_these_modules_load_no_tensorflow_and_set_no_variable() -> None:
    modules = [s.module for s in sources() if s.package in LOADS_NO_TENSORFLOW and s.module not in RUN_BY_WORKERS]
    assert "tfdist.cluster.ports" in modules
    modules += [f"benchmarks.{module}" for module, _ in COMMANDS.values()]  # for their `--help`
    command = [sys.executable, "-c", IMPORT_ALL, *modules]
    quiet = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}  # a thread of MLflow's sets a variable, or is too late
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["loaded", "changed"]


def test_frames_are_looked_at_in_one_file() -> None:
    """A search in the callers of a function breaks with every change between the two."""
    asking = {"_getframe", "currentframe", "f_back"}
    found = {
        source.module
        for source in sources()
        for node in walked(source.tree)
        if isinstance(node, ast.Attribute) and node.attr in asking
    }
    assert found == {"tfdist.compat.keras.keras_frames"}


def test_every_thread_has_a_name() -> None:
    """Stacks of a job that hangs show threads by their names."""
    unnamed = [
        f"{source.module}:{node.lineno}"
        for source in sources()
        for node in walked(source.tree)
        if isinstance(node, ast.Call)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == "Thread"
        and "name" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not unnamed, f"threads without a name: {unnamed}"


def test_files_are_short() -> None:
    folders = (PACKAGE, ROOT / "benchmarks", ROOT / "tests", RECIPES)
    files = [file for folder in folders for file in folder.rglob("*.py")]
    long = {str(f.relative_to(ROOT)): n for f in files if (n := len(f.read_text().splitlines())) > LONGEST_FILE}
    assert not long, f"longer than {LONGEST_FILE} lines, split them by idea: {long}"


def test_every_strategy_has_a_recipe() -> None:
    missing = [name for name in strategy_table.names() if name not in FOLDER_OF_STRATEGY]
    assert not missing, f"name the recipe folder of {missing} in FOLDER_OF_STRATEGY"
    for name in strategy_table.names():
        assert strategy_table.get(name).class_name in strategies.__all__
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
