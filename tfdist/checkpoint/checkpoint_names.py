"""Names of checkpoints and their files, such as `step-000000000123`: they sort as steps do."""

import re

PREFIX = "step-"
SUFFIX = ".safetensors"
ARRAYS = "arrays"
RECEIPT = ".receipt"
MARK_DIGITS, RUN_DIGITS = 16, 8  # a mark tells saves apart; it begins with what tells runs of a script apart
_NAME = re.compile(PREFIX + "[0-9]{12}")
_MARKED = re.compile(rf".*-([0-9a-f]{{{MARK_DIGITS}}})\.[a-z]+", re.DOTALL)


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


def part_name(index: int) -> str:
    """Return what the files of a worker's part begin with.

    Example:
        >>> part_name(3)
        'worker-00003'
    """
    return f"worker-{index:05d}"


def mark_of(file: str) -> str:
    """Return the mark in the name of a file of an object store; "" where there is none.

    Example:
        >>> mark_of("arrays-0123456789abcdef.safetensors"), mark_of("manifest.json")
        ('0123456789abcdef', '')
    """
    found = _MARKED.fullmatch(file)
    return found.group(1) if found else ""


def is_file_of_checkpoint(file: str) -> bool:
    """Return whether a file may be removed with its checkpoint, leaving the manifest aside.

    Example:
        >>> [is_file_of_checkpoint(name) for name in ("arrays.safetensors", "worker-00001.receipt", "notes.txt")]
        [True, True, False]
    """
    return file.endswith((SUFFIX, RECEIPT))


def hidden_name(name: str, mark: str) -> str:
    """Return what a folder is called until it is whole, as `tfdist.storage.filenames.is_temporary` knows it.

    Example:
        >>> hidden_name("step-000000000003", "0123456789abcdef")
        '.step-000000000003.0123456789abcdef.tmp'
    """
    return f".{name}.{mark}.tmp"
