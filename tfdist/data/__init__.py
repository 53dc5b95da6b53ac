"""Examples in TFRecord files: written safely, shuffled globally, divided exactly, resumed from a few numbers.

    write     arrays, streams and files become a directory of TFRecord shards with an index and a manifest
    index     TFRecord files that are there already become such a directory as they are; other files get an index
    open      the directory's examples by number, without TensorFlow
    read      a `tf.data.Dataset` that `fit` takes
    select    some of the examples: by number, by values, by the hash of a key
    mix       several sources with a share each
    pack      sequences of unlike lengths in rows of one length
    poisson   batches that are random samples, for private training
    info      what a directory holds: counts, sizes, schema, labels
    stats     what its examples are like: numbers, classes, duplicates, overlap with others
    verify    every byte is looked at, and everything that is wrong is listed
    repair    what is corrupt is taken out, and the rest kept

Example:
    >>> import tempfile, numpy as np, tfdist
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = tfdist.data.write({"x": np.zeros((10, 4), "float32"), "label": np.arange(10)}, folder)
    ...     len(tfdist.data.open(folder))
    10
"""

from typing import TYPE_CHECKING

from tfdist.lazy_exports import exported

if TYPE_CHECKING:  # for type checkers, and for the API reference
    from tfdist.data.check.repairing import Repair, repair
    from tfdist.data.check.shard_check import Place
    from tfdist.data.check.verifying import Report, verify
    from tfdist.data.examples.checked_examples import Examples
    from tfdist.data.format.data_manifest import Manifest
    from tfdist.data.format.schema import Feature, Schema
    from tfdist.data.looking.data_statistics import Repeats, ShardStats, Stats, stats
    from tfdist.data.looking.feature_tallies import FeatureStats
    from tfdist.data.looking.inspecting import Bar, Info, info
    from tfdist.data.order.class_priors import Prior, effective_shares
    from tfdist.data.reading.index_source import index
    from tfdist.data.reading.poisson_batches import PoissonBatches, poisson
    from tfdist.data.reading.read_dataset import Reading
    from tfdist.data.reading.reader import read
    from tfdist.data.reading.view import View
    from tfdist.data.reading.view import open_directory as open  # noqa: A004
    from tfdist.data.views.mixing import mix
    from tfdist.data.views.selecting import select
    from tfdist.data.views.sequence_packing import pack
    from tfdist.data.writing.dataset_writer import write
    from tfdist.storage.block_cache import BlockCache

__all__ = [
    "Bar",
    "BlockCache",
    "Examples",
    "Feature",
    "FeatureStats",
    "Info",
    "Manifest",
    "Place",
    "PoissonBatches",
    "Prior",
    "Reading",
    "Repair",
    "Repeats",
    "Report",
    "Schema",
    "ShardStats",
    "Stats",
    "View",
    "effective_shares",
    "index",
    "info",
    "mix",
    "open",
    "pack",
    "poisson",
    "read",
    "repair",
    "select",
    "stats",
    "verify",
    "write",
]

__getattr__, __dir__ = exported(__name__, __file__)
