"""The file of a federated application: a Python script with a variable `app`."""

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
    if not file.is_file():
        raise MissingFileError(f"{file} is not there; it must be a Python file with a variable {NAME!r}.", path=file)
    if (folder := str(file.parent.resolve())) not in sys.path:
        sys.path.insert(0, folder)
    found = runpy.run_path(str(file))
    if NAME not in found:
        others = [name for name, value in found.items() if isinstance(value, App)]
        hint = f" Rename {others[0]!r}." if others else f" Write {NAME} = tfdist.federated.App(make_model, ...)."
        raise ConfigError(f"{file} has no variable {NAME!r}.{hint}", name=NAME, path=file)
    if not isinstance(found[NAME], App):
        raise ConfigTypeError(
            f"{NAME} in {file} is {validation.shown(found[NAME])}; it must be a tfdist.federated.App.",
            name=NAME,
            received=type(found[NAME]).__name__,
            path=file,
        )
    app: App = found[NAME]
    return app
