"""Readers of launchers' environment variables; errors name the variable, its value, and the fix."""

from collections.abc import Mapping

from tfdist.errors import ConfigError
from tfdist.validation import integer, parse_integer
from tfdist.variables import PORT

Environ = Mapping[str, str]


def given(environ: Environ, *names: str) -> bool:
    """Return whether any of the variables is set and not blank."""
    return any(environ.get(name, "").strip() for name in names)


def required(environ: Environ, name: str, *, because: str, hint: str) -> str:
    """Return the variable's text; raise if it is not set."""
    if not given(environ, name):
        state = "empty" if name in environ else "not set"
        raise ConfigError(f"{name} is {state} although {because}. {hint}", name=name, received=environ.get(name, ""))
    return environ[name].strip()


def required_integer(
    environ: Environ, name: str, *, because: str, hint: str, minimum: int = 0, maximum: int | None = None
) -> int:
    """Return the variable as an int within the bounds, both included."""
    return parse_integer(
        name, required(environ, name, because=because, hint=hint), minimum=minimum, maximum=maximum, hint=hint
    )


def optional_integer(environ: Environ, name: str, *, default: int, minimum: int = 0, maximum: int | None = None) -> int:
    """Return the variable as an int within the bounds, or ``default`` if it is not set."""
    if not given(environ, name):
        return integer(f"{name} (by default)", default, minimum=minimum, maximum=maximum)
    return parse_integer(name, environ[name], minimum=minimum, maximum=maximum)


def port(environ: Environ, *, default: int, count: int = 1) -> int:
    """Return the first of ``count`` ports in a row: TFDIST_PORT, or ``default``."""
    return optional_integer(environ, PORT.name, default=default, minimum=1, maximum=65535 - (count - 1))
