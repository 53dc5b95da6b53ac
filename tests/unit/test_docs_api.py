"""The API reference: every public name says what it has to say, on a page. Sources are read, not imported.

`tests/integration/test_docs_site.py` builds the site of it.
"""

import importlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

from tests.goldens.public_names import exported, names_of, package

ROOT = Path(__file__).parents[2]
API = ROOT / "docs" / "api"
# what other packages are made of; nothing in them is promised to stay
INTERNAL = {
    "bench",
    "cli",
    "collectives",
    "compat",
    "gradients",
    "monitor",
    "planner",
    "processes",
    "storage",
    "training",
}
PUBLIC = sorted({path.parent.name for path in (ROOT / "tfdist").glob("*/__init__.py")} - INTERNAL)
MODULES = {
    "tfdist.engines.ray",
    "tfdist.errors",
    "tfdist.reproducibility",
    "tfdist.cluster.ports",
    "tfdist.testing.pool",
}
# Keras calls these, with arguments that Keras' documentation describes
OF_KERAS = re.compile(r"on_\w+|set_model|[sg]et_state|build|update_step|apply|scale_loss|get_config|from_config")
EXAMPLE = re.compile(r"^\s*>>> ", re.MULTILINE)


@cache
def public() -> dict[str, griffe.Object]:
    """Every public class and function by its public name."""
    found: dict[str, griffe.Object] = {}
    for path in sorted({f"tfdist.{name}" for name in PUBLIC} | MODULES):
        module = package()[path.partition(".")[2]]
        for name in names_of(module):
            target = exported(module, name)
            if target.is_class or target.is_function:
                found[f"{path}.{name}"] = target
    return found


def methods(name: str, target: griffe.Object) -> Iterator[tuple[str, griffe.Object]]:
    """The public methods that a class defines itself."""
    for member in target.members.values() if target.is_class else ():
        if not member.is_alias and member.is_function and not member.name.startswith("_"):
            yield f"{name}.{member.name}", member


def taken(function: griffe.Object) -> set[str]:
    """The names of a function's arguments, without *args and **kwargs."""
    assert isinstance(function, griffe.Function)
    variable = (griffe.ParameterKind.var_positional, griffe.ParameterKind.var_keyword)
    return {one.name for one in function.parameters if one.kind not in variable} - {"self", "cls"}


def arguments(target: griffe.Object) -> set[str]:
    """Return the names of the arguments of a function, or of a class."""
    if target.is_function:
        return taken(target)
    if "dataclass" in target.labels:
        fields = (one for one in target.members.values() if one.is_attribute and "property" not in one.labels)
        of_objects = (one for one in fields if one.annotation is not None and "instance-attribute" in one.labels)
        return {one.name for one in of_objects if not one.name.startswith("_")}
    made = target.members.get("__init__")
    return taken(made) if made is not None and made.is_function else set()


def described(target: griffe.Object) -> set[str]:
    """The arguments and attributes that a docstring describes in a section of its own, or names in its text."""
    assert target.docstring is not None
    found = set(re.findall(r"[a-z_]\w*", target.docstring.value.split("\n\n")[0]))  # a summary may say it all
    for section in target.docstring.parsed:
        if section.kind.value in ("parameters", "other parameters", "attributes"):
            found |= {part.strip(" *`") for one in section.value for part in one.name.split(",")}
    return found


def bases(target: griffe.Object) -> list[griffe.Object]:
    """The classes of tfdist that a class is derived from; of a method, the methods that it takes the place of."""
    if target.is_class:
        return list(target.mro())
    owner = target.parent
    classes = owner.mro() if owner is not None and owner.is_class else ()
    found = (one.members.get(target.name) for one in classes)
    return [one for one in found if one is not None and one.is_function]


def test_packages_say_what_they_export() -> None:
    for name in PUBLIC:
        module = importlib.import_module(f"tfdist.{name}")
        static = names_of(package()[name])
        assert sorted(module.__all__) == sorted(static), f"tfdist.{name}: what type checkers see is not what is there"
        where = getattr(module, "_WHERE", getattr(module, "_MODULES", None))
        if where is not None:
            assert sorted(where) == sorted(static), f"tfdist.{name}: __all__ and the table of lazy names differ"


def test_every_public_package_has_a_page() -> None:
    site = (ROOT / "mkdocs.yml").read_text()
    for name in PUBLIC:
        page = API / f"{name}.md"
        assert page.is_file(), f"docs/api/{name}.md is missing"
        assert f"::: tfdist.{name}\n" in page.read_text()
    for page in API.glob("*.md"):
        assert f"docs/api/{page.name}" in site, f"mkdocs.yml has no {page.name} in its nav"
        assert page.name == "index.md" or f"({page.name})" in (API / "index.md").read_text()


def test_the_page_of_data_begins_with_what_is_used_first_and_has_every_name() -> None:
    listed = re.findall(r"^        - (\w+)$", (API / "data.md").read_text(), re.MULTILINE)
    assert listed[:3] == ["write", "index", "read"]
    assert sorted(listed) == sorted(importlib.import_module("tfdist.data").__all__)


def test_public_names_are_documented() -> None:
    wrong = []
    for name, target in public().items():
        for place, one in ((name, target), *methods(name, target)):
            if one.docstring is None:
                wrong.append(f"{place}: no docstring")
                continue
            summary = one.docstring.value.split("\n\n")[0]
            if not summary.rstrip().endswith((".", ":")) or "\n" in summary.strip():
                wrong.append(f"{place}: the first line is no sentence: {summary!r}")
            if place != name and (OF_KERAS.fullmatch(one.name) or len(arguments(one)) == 1):
                continue  # of a method with one argument the summary says it
            said = [described(base) for base in bases(one) if base.docstring is not None]
            missing = arguments(one) - described(one).union(*said)
            if missing:
                wrong.append(f"{place}: says nothing of {', '.join(sorted(missing))}")
    assert not wrong, "\n".join(wrong)


def test_public_names_have_an_example() -> None:
    """In the docstring, in a method's, or in that of the package; tests/integration/test_docstrings.py runs them.

    A dataclass needs none, its attributes say what it is; for exceptions their file has one.
    """
    wrong = []
    for name, target in public().items():
        path, _, last = name.rpartition(".")
        home = package()[path.partition(".")[2]]
        places = [target, *(one for _, one in methods(name, target))]
        if last in text_of(home) or path == "tfdist.errors":
            places.append(home)
        if "dataclass" not in target.labels and not any(EXAMPLE.search(text_of(one)) for one in places):
            wrong.append(name)
    assert not wrong, "no example:\n" + "\n".join(wrong)


def text_of(target: griffe.Object) -> str:
    return target.docstring.value if target.docstring else ""


def skipped(text: str) -> bool:
    """Whether no line of the examples in a docstring runs."""
    lines = [line for line in text.splitlines() if line.lstrip().startswith(">>> ")]
    return bool(lines) and all("doctest: +SKIP" in line for line in lines)


# why nothing of an example runs
NOT_RUN = {
    "tfdist.strategies.MultiWorkerMirroredStrategy": "it has to come before everything else in a process",
    "tfdist.strategies.ModelParallelStrategy": "it starts among several processes",
    "tfdist.strategies.PipelineStrategy": "it starts among several processes",
    "tfdist.strategies.ShardedDataParallelStrategy": "it has to come before everything else in a process",
    "tfdist.strategies.RingStrategy": "Horovod begins once in a process",
    "tfdist.strategies.ParameterServerStrategy": "it starts processes",
    "tfdist.strategies.use_logical_cpus": "it has to come before everything else in a process",
    "tfdist.reproducibility.reproducible": "it has to come before everything else in a process",
    "tfdist.build.install": "it takes minutes",
    "tfdist.native.records": "it compiles",
    "tfdist.native.row_solver": "it compiles",
    "tfdist.verify.feature": "it would be in the matrix",
    "tfdist.verify.run": "it starts processes",
}


def test_few_examples_are_not_run() -> None:
    found = {name for name, target in public().items() if target.docstring and skipped(target.docstring.value)}
    assert found <= NOT_RUN.keys(), f"make these run: {sorted(found - NOT_RUN.keys())}"
