"""Keras callbacks of tfdist; they work in any tfdist scope, and in none."""

import importlib
from typing import Any

_WHERE = {"BackupAndRestore": "backup_and_restore"}

__all__ = ["BackupAndRestore"]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
