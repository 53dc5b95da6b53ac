"""Accept only plain file names from manifests and callers, which cannot leave a directory."""

import re
import secrets

from tfdist import validation
from tfdist.errors import ConfigError

#: In bytes of UTF-8. File systems take 255; a temporary file's name is longer than that of the file it becomes.
LONGEST_NAME = 200
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp", re.DOTALL)


def is_plain(name: str) -> bool:
    """Return whether `plain_name` would take ``name``.

    Example:
        >>> is_plain("data-00000.tfrecord"), is_plain(".lock"), is_plain("../secret")
        (True, False, False)
    """
    try:
        plain_name(name)
    except ConfigError:
        return False
    return True


def plain_name(name: str) -> str:
    """Return ``name`` if it names a file in a directory and cannot mean anything else, here and on an object store.

    Example:
        >>> plain_name("größe 1.tfrecord")
        'größe 1.tfrecord'
    """
    hint = "Names of files are plain: no folder, no leading dot, no control character."
    validation.text("the name of a file", name, hint=hint)
    required = f"the name of a file is {validation.shown(name)}; it must"
    if name.startswith(".") or any(sign in "/\\" or not sign.isprintable() for sign in name):
        raise ConfigError(f"{required} stay in its directory. {hint}", name="name", received=name)
    if len(name.encode("utf-8")) > LONGEST_NAME:
        raise ConfigError(
            f"{required} have at most {LONGEST_NAME} bytes. Choose a shorter one.", name="name", received=name
        )
    return name


def temporary_name(name: str) -> str:
    """Return a new name for what will become the file ``name``; it is not plain, so nobody takes it for data.

    Example:
        >>> temporary_name("a.index").startswith(".a.index."), is_temporary(temporary_name("a.index"))
        (True, True)
    """
    return f".{name}.{secrets.token_hex(8)}.tmp"


def is_temporary(name: str) -> bool:
    """Return whether `temporary_name` may have made ``name``."""
    return bool(_TEMPORARY.fullmatch(name))
