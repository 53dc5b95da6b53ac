"""The file of a federated application: a Python script with a variable `app`."""

import ast
import runpy
import sys
from pathlib import Path

from tfdist import validation
from tfdist.errors import ConfigError, ConfigTypeError, MissingFileError
from tfdist.federated.app import App

NAME = "app"


def load_app(file: Path) -> App:
    """Run the file and return its `app`; code below `if __name__ == "__main__":` does not run.

    As for a script, modules beside the file can be imported, also later by the app's functions.
    """
    require_app(file)
    if (folder := str(file.parent.resolve())) not in sys.path:
        sys.path.insert(0, folder)
    found = runpy.run_path(str(file))
    if NAME not in found:
        raise _without_the_name(file, [name for name, value in found.items() if isinstance(value, App)])
    if not isinstance(found[NAME], App):
        raise ConfigTypeError(
            f"{NAME} in {file} is {validation.shown(found[NAME])}; it must be a tfdist.federated.App.",
            name=NAME,
            received=type(found[NAME]).__name__,
            path=file,
        )
    app: App = found[NAME]
    return app


def require_app(file: Path) -> None:
    """Refuse a file that cannot set `app`, without running it: it may be a script that trains for hours."""
    if not file.is_file():
        raise MissingFileError(f"{file} is not there; it must be a Python file with a variable {NAME!r}.", path=file)
    tree = validation.parsed_script("APP.PY", file)
    if not _may_bind_the_name(tree):
        raise _without_the_name(file, _names_of_apps(tree))


def _without_the_name(file: Path, others: list[str]) -> ConfigError:
    hint = f" Rename {others[0]!r}." if others else f" Write {NAME} = tfdist.federated.App(make_model, ...)."
    return ConfigError(f"{file} has no variable {NAME!r}.{hint}", name=NAME, path=file)


def _may_bind_the_name(tree: ast.Module) -> bool:
    """Return False if no statement binds `app`, and none binds names that only a run of the file shows."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) if name == NAME and isinstance(node.ctx, ast.Store):
                return True
            case ast.Name(id="globals" | "locals" | "vars" | "exec" | "eval"):
                return True
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name == NAME:
                return True
            case ast.alias() if (node.asname or node.name) in (NAME, "*"):
                return True
    return False


def _names_of_apps(tree: ast.Module) -> list[str]:
    """Return the variables to which the file assigns a call of `App`, however it has imported it."""
    return [
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func).rpartition(".")[2] == App.__name__
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
