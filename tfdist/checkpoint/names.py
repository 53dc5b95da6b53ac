"""How checkpoints and their files are called: `step-000000000123`, so that names sort as steps do."""

import re

PREFIX = "step-"
SUFFIX = ".safetensors"
ARRAYS = f"arrays{SUFFIX}"
_NAME = re.compile(PREFIX + "[0-9]{12}")


def step_name(step: int) -> str:
    """Return the name of a step's folder.

    Example:
        >>> step_name(123)
        'step-000000000123'
    """
    return f"{PREFIX}{step:012d}"


def is_step_name(name: str) -> bool:
    """Return whether `step_name` may have made ``name``.

    Example:
        >>> is_step_name("step-000000000123"), is_step_name("step-123"), is_step_name("steps")
        (True, False, False)
    """
    return bool(_NAME.fullmatch(name))


def step_of(name: str) -> int:
    """Return the step of a folder's name.

    Example:
        >>> step_of("step-000000000123")
        123
    """
    return int(name.removeprefix(PREFIX))
