"""The drivers of fsspec: found by a URL, their errors said so that a reader knows what to do."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import fsspec
from fsspec.core import url_to_fs
from fsspec.registry import known_implementations

from tfdist.errors import ConfigError, MissingDependencyError, MissingFileError, StorageError, TfdistError

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_PACKAGES = {"hdfs": "pyarrow", "az": "adlfs", "abfs": "adlfs", "abfss": "adlfs", "oss": "ossfs", "oci": "ocifs"}
_OPTIONS = {"directory": "storage_options", "source": "source_options"}


def driver(url: str, options: Mapping[str, Any], *, of: str = "directory") -> tuple[Any, str]:
    """Return the driver of a URL, and what the driver calls the place.

    Example:
        >>> driver("memory://digits/train", {})[1]
        '/digits/train'
    """
    protocol = url.split("://", 1)[0].split("::", 1)[0].lower()
    try:
        fsspec.get_filesystem_class(protocol)
        fs, root = url_to_fs(url, **options)
    except ImportError as error:
        package = f"'tfdist[{_EXTRAS[protocol]}]'" if protocol in _EXTRAS else _PACKAGES.get(protocol, "")
        command = (
            f"Install it: pip install {package}" if package else known_implementations.get(protocol, {}).get("err")
        )
        raise MissingDependencyError(
            f"{url} needs a driver that is missing ({error}). {command}", name=protocol, path=url
        ) from error
    except ValueError as error:
        if protocol in known_implementations:
            raise ConfigError(
                f"{of} is {url!r}; {error}. Look at the URL and at {_OPTIONS[of]}.", name=of, received=url, path=url
            ) from error
        raise ConfigError(
            f"{of} is {url!r}; {protocol!r} is no kind of store that fsspec knows. Use s3://, gs://, hdfs://, "
            "memory:// or another of fsspec's.",
            name=of,
            received=url,
            path=url,
        ) from error
    except TypeError as error:
        raise ConfigError(
            f"{_OPTIONS[of]} are {sorted(options)}; the driver of {url} refused them: {error}.",
            name=_OPTIONS[of],
            received=sorted(options),
            path=url,
        ) from error
    return fs, str(root)


@contextmanager
def explained(where: str, doing: str, *, of: str = "directory") -> Iterator[None]:
    """Turn what drivers raise in a block, which is anything, into `StorageError`."""
    try:
        yield
    except TfdistError:
        raise
    except FileNotFoundError as error:
        kind = StorageError if doing == "written" else MissingFileError
        raise kind(f"{where} cannot be {doing}: there is none. Look whether the URL is right.", path=where) from error
    except Exception as error:
        reason = (str(error) or type(error).__name__).rstrip(".")
        raise StorageError(
            f"{where} cannot be {doing}: {reason}. {_advice(error, _OPTIONS[of])}", path=where
        ) from error


def _advice(error: Exception, options: str) -> str:
    if isinstance(error, PermissionError) or "redential" in f"{type(error).__name__} {error}":
        return f"Look at the credentials and their rights (environment, configuration files, {options})."
    return f"Look at the network, the URL and {options}."
