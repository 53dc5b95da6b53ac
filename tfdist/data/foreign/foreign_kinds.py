"""Which library wrote the files that a path means."""

import json
import os
from pathlib import Path
from typing import Any

from tfdist.data.foreign.foreign_files import Files, Foreign, files_of
from tfdist.errors import ConfigError


def open_foreign(directory: Any) -> Foreign | None:
    """Examples in files of another library; None where a path means TFRecord files, or something else."""
    text = os.path.expanduser(os.fspath(directory))
    if "://" in text:
        return None
    for opener in (_mds, _saved_dataset, _token_file):
        if (found := opener(Path(text))) is not None:
            return found
    paths = files_of(text)
    kinds = {path.suffix.lower() for path in paths}
    if len(kinds) != 1 or not paths:
        return None
    return _by_suffix(kinds.pop(), paths)


def _by_suffix(suffix: str, paths: list[Path]) -> Foreign | None:
    if suffix == ".tar":
        from tfdist.data.foreign.tar_shards import TarShards

        return TarShards(Files(paths, "tar"))
    if suffix == ".jsonl":
        from tfdist.data.foreign.json_lines import JsonLines

        return JsonLines(Files(paths, "jsonl"))
    if suffix == ".arrow":
        from tfdist.data.foreign.arrow_files import ArrowFiles

        return ArrowFiles(Files(paths, "arrow"))
    return None


def _mds(path: Path) -> Foreign | None:
    if not _has(path / "index.json", "shards"):
        return None
    from tfdist.data.foreign.mds_shards import open_mds

    return open_mds(path)


def _saved_dataset(path: Path) -> Foreign | None:
    if (path / "dataset_dict.json").is_file():
        inner = ", ".join(sorted(part.name for part in path.iterdir() if part.is_dir()))
        raise ConfigError(f"{path} has several splits; pass one of them: {inner}.", path=str(path))
    if not _has(path / "state.json", "_data_files"):
        return None
    from tfdist.data.foreign.arrow_files import open_saved

    return open_saved(path)


def _has(path: Path, field: str) -> bool:
    """A file is a JSON object with this field: others may have its name."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and field in found


def _token_file(path: Path) -> Foreign | None:
    base = path.with_suffix("") if path.suffix in (".bin", ".idx") else path
    index = base.with_name(base.name + ".idx")
    if not index.is_file():
        return None
    from tfdist.data.foreign.token_files import open_tokens

    return open_tokens(base)
