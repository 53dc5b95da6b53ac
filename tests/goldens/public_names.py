"""Every name that a page of docs/api calls public, with the arguments it takes, read from the sources."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
_PAGES = ROOT / "docs" / "api"
_DIRECTIVE = re.compile(r"^::: (tfdist[\w.]*)$", re.MULTILINE)
_VARIABLE = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}


@cache
def package() -> griffe.Module:
    """Return the package as its sources say it is."""
    loader = griffe.GriffeLoader(
        extensions=griffe.load_extensions(str(ROOT / "docs" / "docstrings.py")),
        search_paths=[str(ROOT), str(ROOT / "packaging" / "horovod")],
        docstring_parser="google",
        docstring_options={"warnings": False},
    )
    loader.load("tfdist_horovod")  # which tfdist.build exports
    loaded = loader.load("tfdist")
    loader.resolve_aliases(implicit=False, external=False)
    assert isinstance(loaded, griffe.Module)
    return loaded


def names_of(module: griffe.Module) -> list[str]:
    """Return the names that a module exports: `__all__`, or its public classes and functions."""
    if module.exports is not None:
        return [str(name) for name in module.exports]
    own = (member for member in module.members.values() if not member.is_alias and not member.name.startswith("_"))
    return [member.name for member in own if member.is_class or member.is_function]


def exported(module: griffe.Object, name: str) -> griffe.Object:
    """Return the object that a module exports by this name, at its definition."""
    target = _behind(module.members[name])
    # a function that has the name of the file in which it stands
    return _behind(target.members.get(name, target)) if target.is_module else target


def public_names() -> str:
    """Return the golden text: each public module or name, and below it what it has."""
    return "\n".join(line for path in _told() for line in _lines(path)) + "\n"


@cache
def public_paths() -> frozenset[str]:
    """Return the paths at which public classes and functions are defined, such as `tfdist.optimizers.lars.LARS`."""
    return frozenset(target.path for target in _targets() if isinstance(target, griffe.Class | griffe.Function))


def _behind(member: griffe.Object | griffe.Alias) -> griffe.Object:
    return member.final_target if isinstance(member, griffe.Alias) else member


def _told() -> list[str]:
    """Return the modules and names that pages have a directive for."""
    pages = sorted(_PAGES.glob("*.md"))
    return sorted({name for page in pages for name in _DIRECTIVE.findall(page.read_text(encoding="utf-8"))})


def _found(path: str) -> griffe.Object:
    found: griffe.Object = package()
    for name in path.split(".")[1:]:
        found = _behind(found.members[name])
    return found


def _targets() -> Iterator[griffe.Object]:
    for path in _told():
        found = _found(path)
        is_module = isinstance(found, griffe.Module)
        yield from (exported(found, name) for name in names_of(found)) if is_module else [found]


def _lines(path: str) -> Iterator[str]:
    found = _found(path)
    if not isinstance(found, griffe.Module):
        yield from _of_name(path, found)
        return
    yield path
    for name in sorted(names_of(found)):
        yield from (f"  {line}" for line in _of_name(name, exported(found, name)))


def _of_name(name: str, target: griffe.Object) -> Iterator[str]:
    if isinstance(target, griffe.Function):
        yield f"{name}{_taken(target.parameters)}"
    elif isinstance(target, griffe.Class):
        yield f"{name}{_taken(target.parameters)}"
        for member in sorted(_members(target), key=lambda one: str(one.name)):
            if isinstance(member, griffe.Function):
                yield f"  .{member.name}{_taken(member.parameters)}"
            elif "property" in member.labels or member.docstring is not None:
                yield f"  .{member.name}"
    else:
        yield name


def _members(target: griffe.Class) -> Iterator[griffe.Object]:
    """Yield the public members of a class, those of its bases in tfdist included."""
    own = (member for member in target.members.values() if not member.is_alias)
    for member in (*own, *target.inherited_members.values()):
        if not member.name.startswith("_"):
            yield _behind(member)


def _taken(parameters: griffe.Parameters) -> str:
    """Return arguments as a call shows them, without types."""
    shown, is_named = list[str](), False
    for one in parameters:
        if one.name in ("self", "cls"):
            continue
        if one.kind is griffe.ParameterKind.keyword_only and not is_named:
            shown.append("*")
        is_named = is_named or one.kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        mark = _VARIABLE.get(one.kind, "") if one.kind is not None else ""
        shown.append(f"{mark}{one.name}" + ("" if one.default is None or mark else f"={one.default}"))
    return f"({', '.join(shown)})"
