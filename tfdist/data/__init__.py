"""Examples in TFRecord files: written safely, shuffled globally, divided exactly, resumed from a few numbers.

    write     arrays, streams and files become a directory of TFRecord shards with an index and a manifest
    index     TFRecord files that are there already become such a directory as they are
    open      the directory's examples by number, without TensorFlow
    read      a `tf.data.Dataset` that `fit` takes
    info      what a directory holds: counts, sizes, schema, labels
    verify    every byte is looked at, and everything that is wrong is listed
    repair    what is corrupt is taken out, and the rest kept

Example:
    >>> import tempfile, numpy as np, tfdist
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = tfdist.data.write({"x": np.zeros((10, 4), "float32"), "label": np.arange(10)}, folder)
    ...     len(tfdist.data.open(folder))
    10
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.data.blocks import BlockCache
    from tfdist.data.examining import Place
    from tfdist.data.examples import Examples
    from tfdist.data.examples import open_directory as open  # noqa: A004
    from tfdist.data.indexing import index
    from tfdist.data.inspecting import Bar, Info, info
    from tfdist.data.manifest import Manifest
    from tfdist.data.reader import read
    from tfdist.data.reading import Reading
    from tfdist.data.repairing import Repair, repair
    from tfdist.data.schema import Feature, Schema
    from tfdist.data.verifying import Report, verify
    from tfdist.data.writer import write

# name -> where it is; `read` needs TensorFlow, which is not loaded before
_WHERE = {
    "Bar": "inspecting:Bar",
    "BlockCache": "blocks:BlockCache",
    "Examples": "examples:Examples",
    "Feature": "schema:Feature",
    "Info": "inspecting:Info",
    "Manifest": "manifest:Manifest",
    "Place": "examining:Place",
    "Reading": "reading:Reading",
    "Repair": "repairing:Repair",
    "Report": "verifying:Report",
    "Schema": "schema:Schema",
    "index": "indexing:index",
    "info": "inspecting:info",
    "open": "examples:open_directory",
    "read": "reader:read",
    "repair": "repairing:repair",
    "verify": "verifying:verify",
    "write": "writer:write",
}
__all__ = [
    "Bar",
    "BlockCache",
    "Examples",
    "Feature",
    "Info",
    "Manifest",
    "Place",
    "Reading",
    "Repair",
    "Report",
    "Schema",
    "index",
    "info",
    "open",
    "read",
    "repair",
    "verify",
    "write",
]


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        module, _, attribute = _WHERE[name].partition(":")
        return getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
