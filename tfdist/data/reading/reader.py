"""A directory of examples as a `tf.data.Dataset` for `fit`."""

import functools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples
from tfdist.data.examples.feature_values import label_columns
from tfdist.data.format.data_manifest import Manifest
from tfdist.data.order import batch_positions, class_lists, class_shares, epoch_orders, mixtures
from tfdist.data.order.class_priors import Prior, prior_of
from tfdist.data.order.length_buckets import Bucketed, block_of
from tfdist.data.reading import read_dataset as pipelines
from tfdist.data.reading.element_roles import pads_of, roles
from tfdist.data.reading.example_cache import DecodedCache
from tfdist.data.reading.read_dataset import Reading, position_of
from tfdist.data.reading.user_functions import Function
from tfdist.data.reading.view import View, fetcher_of, view_of
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.native.compiled_orders import CompiledOrders, compiled_orders
from tfdist.storage.block_cache import BlockCache

_BLOCK_BYTES = 2 << 20  # read in one go, from a disk that spins or from a store
_WINDOW = 64  # blocks that are mixed
_REMOTE_CACHE_BYTES = 1 << 30

_Label = str | tuple[str, ...] | None


def read(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Examples | View,
    *,
    global_batch_size: int,
    seed: int = 0,
    order: str | Mapping[Any, float] = "full",
    tail: str | None = None,
    bucket_by: str | None = None,
    label: str | Sequence[str] | None = None,
    inputs: Sequence[str] | str = (),
    weight: str | None = None,
    decode: Function | None = None,
    augment: Function | None = None,
    pad: Mapping[str, Any] | None = None,
    cache: str | os.PathLike[str] | None = None,
    on_corrupt: str = "raise",
    verify: str = "first",
    device: str | None = None,
    state: Mapping[str, Any] | None = None,
    resume: str = "same",
    remote_cache: BlockCache | None = None,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
    records: str = "examples",
    ops: bool | None = None,
) -> Reading:
    """Read a directory of examples: shuffled globally, each once per epoch, the same on any number of workers.

    The examples of a batch follow from (seed, epoch, position) alone. Under a tfdist strategy each worker reads its
    slice of every global batch; elsewhere the dataset yields whole global batches.

    Args:
        directory: a directory that `tfdist.data.write` made; a path or an fsspec URL. Or TFRecord files of other
            writers: a folder, one file, or several by a wildcard, also compressed with GZIP or ZLIB. Their schema is
            inferred from all records when they are first read, and logged; see `tfdist.data.index`. Or a list of
            directories, or a result of `tfdist.data.open`, `tfdist.data.select` or `tfdist.data.mix`.
        global_batch_size: the number of examples of a batch, over all replicas.
        seed: the seed of the order and of augmentation.
        order: the order of the examples. "full" permutes all examples, anew in each epoch; "block" permutes blocks of
            neighbours and mixes the examples of 64 blocks, for object stores and spinning disks; "none" keeps the order
            of writing; "balanced" gives each class of ``label`` the same share; a mapping of classes to weights gives
            each class its share. With the last two, an epoch has as many positions as there are examples, and some
            examples occur more than once. The label is then one integer or text, a list of these, a 0 or 1 for each
            class, or several labels, whose combinations are the classes.
        tail: the treatment of a last batch with fewer examples: "pad" fills it with examples of weight 0, so that all
            batches have one shape; "drop" leaves it out; "keep" yields it as it is. Default: "pad" with a label, "keep"
            if there is no weight.
        bucket_by: the feature by which batches get examples of similar lengths: a list or text of any length, or an
            integer that states the length. Permuted examples are sorted by length in windows of 64 batches, and these
            batches are permuted. The order must be "full".
        label: the feature to learn, or a list of features, which makes y a dict. Default: the label that the directory
            names; without a label, batches are x alone.
        inputs: the features that make x: one name, or several for a dict. Default: all but label and weight.
        weight: the feature with the sample weight.
        decode: a deterministic function of an example's features (a dict of tensors) that returns its features, such as
            a decoded and resized picture. An array whose first dimension is unknown becomes a ragged one.
        augment: a function of an example's features and of a seed (int32 ``[2]``, for `tf.image.stateless_*` and
            `tf.random.stateless_*`) that returns its features. The seed follows from (seed, epoch, example), so results
            do not depend on workers. The last of these functions may also return ``(x, y)`` or ``(x, y, weight)`` of
            any structure.
        pad: the length to which each list or ragged array is padded with 0, by feature; or ``(length, value)``. With a
            list of lengths, rows that are read together are padded to the smallest length that fits. A longer list is
            an error.
        cache: the place for results of ``decode``: "memory", or a folder on a local disk. Default: none are kept.
        on_corrupt: the treatment of a corrupt example: "raise" an error; "skip" it with a line in the log, and replace
            it by another one with weight 0, so that the number of steps stays; or "verify" every record before anything
            is read. An example for which ``decode`` or ``augment`` raises an error is corrupt, too.
        verify: the time at which checksums are verified: "first", when a record is first read, "always", or "never".
        device: the device into whose memory batches are prefetched ("/gpu:0"). It has no effect under a tfdist
            strategy.
        state: the position to resume from, a result of `Reading.state`.
        resume: the examples to resume with if the directory was appended to since ``state``: the "same" ones as then,
            or, at the beginning of an epoch, the "newest", which means all.
        remote_cache: the cache for blocks of remote files. Default: 1 GiB in memory.
        storage_options: options of fsspec's driver, such as ``{"anon": True}``; for URLs only.
        follow_symlinks: whether files of a local directory may be symbolic links that lead out of it, as in the caches
            of DVC and of hubs. Default: they are refused.
        records: the kind of records in TFRecord and ArrayRecord files: "examples", "sequences" or "raw"; see
            `tfdist.data.open`.
        ops: whether to use the compiled reader. Default: True if it can be compiled and TFDIST_NATIVE is not 0.
    Returns:
        A dataset of (x, y, weight). It has no weight if none is named and no example can have the weight 0, and only x
        without a label.
    Raises:
        ConfigError: an argument cannot be used; there is no such directory or feature; ``decode`` or ``augment`` does
            not return a dict of dense tensors.
        CorruptDataError: the manifest or an index cannot be trusted, or a shard is not the one that the manifest
            describes. A corrupt or undecodable example raises it during iteration and in `fit`.
        DataChangedError: the directory was overwritten or repaired since it was opened; raised during iteration and in
            `fit`.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.zeros((10, 4), "float32"), "label": np.arange(10)}, folder)
        ...     train = tfdist.data.read(folder, global_batch_size=4, seed=17)
        ...     [weight.numpy().tolist() for x, y, weight in train]
        [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 0.0]]
    """
    global_batch_size = validation.integer(
        "global_batch_size", global_batch_size, minimum=1, hint="Pass the examples of a step over all replicas: 64."
    )
    seed = validation.integer("seed", seed)
    if tail is not None:
        validation.one_of("tail", tail, batch_positions.TAILS)
    validation.one_of("on_corrupt", on_corrupt, ("raise", "skip", "verify"))
    validation.one_of("verify", verify, ("first", "always", "never"))
    validation.one_of("resume", resume, ("same", "newest"))
    for name, function in (("decode", decode), ("augment", augment)):
        if function is not None and not callable(function):
            raise validation.mismatch(name, function, "a function, or None.", kind=ConfigTypeError)
    is_remote = isinstance(directory, (str, list, tuple)) and "://" in str(directory)
    view = view_of(
        directory,
        storage_options=storage_options,
        cache=remote_cache or (BlockCache(limit_bytes=_REMOTE_CACHE_BYTES) if is_remote else None),
        follow_symlinks=follow_symlinks,
        records=records,
    )
    examples = view.examples
    if examples.paths is not None:  # of a store when they are read first
        examples.binding.require(range(len(examples.manifest.shards)))
    last = "augment" if augment is not None else "decode" if decode is not None else ""
    origin = f"{last} returns" if last else "the examples have"
    named = roles(label, inputs, weight, origin=origin, default_label=examples.manifest.label)
    if not last:  # else what it returns is looked at
        named.require(examples.schema)
    tail = tail or ("keep" if named.label is None else "pad")

    # only if compiled code reads the records as well: nothing is compiled for the order alone
    is_compiled = ops is not False and cache is None and examples.paths is not None and order == "full"
    compiled = compiled_orders() if is_compiled else None

    def order_of(manifest: Manifest, former: Any) -> epoch_orders.Order:
        if bucket_by is not None:
            return _bucketed(view, manifest, order, bucket_by, block_of(former) or global_batch_size)
        return _order(view, manifest, order, named.label, compiled)

    given = dict(state) if isinstance(state, Mapping) else state
    chosen = order_of(examples.manifest, given.get("order") if isinstance(given, dict) else None)
    if named.label is None and not last and (tail == "pad" or on_corrupt == "skip"):
        what = "tail='pad'" if tail == "pad" else "on_corrupt='skip'"
        raise ConfigError(
            f"{what} gives some examples the weight 0, and without a label there is no weight. Name the label, or pass "
            + ("tail='keep' or 'drop'." if tail == "pad" else "on_corrupt='raise'."),
            name=what.partition("=")[0],
            received=what.partition("=")[2].strip("'"),
        )
    if on_corrupt == "verify":
        examples.require_sound()
    if tail == "drop" and chosen.examples < global_batch_size:
        raise ConfigError(
            f"global_batch_size is {global_batch_size} and there are {chosen.examples} examples, so tail='drop' leaves "
            "nothing. Pass a smaller batch, or another tail.",
            name="tail",
            received="drop",
        )
    pipeline = pipelines.Pipeline(
        view=view,
        fetcher=fetcher_of(examples, verify=verify, skip=on_corrupt == "skip"),
        order=chosen,
        order_of=order_of,
        seed=seed,
        global_batch_size=global_batch_size,
        tail=tail,
        decode=decode,
        augment=augment,
        cache=None if cache is None else DecodedCache(cache, len(examples)),
        pads=pads_of(pad),
        finish=named.element,
        weighs=tail == "pad" or on_corrupt == "skip",
        prior=functools.partial(_prior, view, named.label),
        uses_ops=ops is not False,
    )
    position = position_of(pipeline, given, is_newest=resume == "newest")
    return Reading(pipeline, position, device)


def _order(
    view: View, manifest: Manifest, order: Any, label: _Label, compiled: CompiledOrders | None
) -> epoch_orders.Order:
    """Return the order of those examples of a view that a manifest has; the others were appended later."""
    if view.mixture is None:
        view = _first_of(view, manifest)
        inner = _order_of(view, manifest, min(len(view), manifest.examples), order, label, compiled)
        return inner if view.ids is None else mixtures.Chosen(inner, view.ids)
    if isinstance(order, Mapping) or order == "balanced":
        raise ConfigError(
            f"order is {validation.shown(order)}, and a mixture has the shares of its sources. Pass 'full', 'block' or "
            "'none'; or read the directories as a list, with shares of classes.",
            name="order",
            received=validation.shown(order),
        )
    orders = [_order_of(view, manifest, size, order, label, compiled) for size in view.mixture.sizes.values()]
    mixed = view.mixture.order(orders)
    return mixed if view.ids is None else mixtures.Chosen(mixed, view.ids)


def _first_of(view: View, manifest: Manifest) -> View:
    """Return those examples of a view that a manifest has; they have the first numbers."""
    return view if view.ids is None else View(view.examples, view.ids[view.ids < manifest.examples], view.mixture)


def _order_of(
    view: View, manifest: Manifest, count: int, order: Any, label: _Label, compiled: CompiledOrders | None
) -> epoch_orders.Order:
    if isinstance(order, Mapping):
        names = view.examples.schema[label].names if isinstance(label, str) and label in view.examples.schema else ()
        return class_shares.Weighted(_classes(view, count, label), dict(order), names)
    validation.one_of("order", order, ("full", "block", "none", "balanced"), hint="Or a mapping of labels to weights.")
    if order == "balanced":
        return class_shares.Balanced(_classes(view, count, label))
    if order == "full":
        return epoch_orders.Full(count, compiled=compiled)
    if order == "none":
        return epoch_orders.Sequential(count)
    mean = max(1, manifest.total_bytes // max(1, manifest.examples))
    return epoch_orders.Block(count, max(1, min(count, _BLOCK_BYTES // mean)), _WINDOW)


def _bucketed(view: View, manifest: Manifest, order: Any, name: str, block: int) -> epoch_orders.Order:
    if order != "full" or view.mixture is not None:
        what = "a mixture" if view.mixture is not None else f"order={validation.shown(order)}"
        raise ConfigError(f"bucket_by is an order of its own, and cannot be combined with {what}.", name="bucket_by")
    feature = view.examples.schema.get(name)
    if (
        feature is None
        or feature.shape not in ((), (None,))
        or (feature.shape == () and feature.dtype.startswith("float"))
    ):
        raise ConfigError(
            f"bucket_by names the feature {name!r}, which is {feature}; it must be a list, a text, or one integer. "
            f"There are {', '.join(map(repr, view.examples.schema))}.",
            name="bucket_by",
            received=name,
        )
    view = _first_of(view, manifest)
    inner = Bucketed(view.of(view.examples.lengths(name))[: manifest.examples], block)
    return inner if view.ids is None else mixtures.Chosen(inner, view.ids)


def _prior(view: View, default: _Label, order: epoch_orders.Order, label: str | None) -> Prior:
    """Return the prior of a label under an order of the view, which may be older than appended examples."""
    name = label or default
    if not isinstance(name, str):
        what = f"there are the labels {', '.join(map(repr, default))}" if default else "no label is known"
        raise ConfigError(f"{what}; name the one whose prior is asked for: prior('label').", name="label")
    inner: epoch_orders.Order = order
    numbers: Any = slice(order.examples if view.mixture is None else None)
    if isinstance(order, mixtures.Chosen):
        inner, numbers = order.inner, order.numbers
    columns = [column[numbers] for column in label_columns(view.examples, [name])]
    often = np.full(len(columns[0]), 1 / len(columns[0]))
    if isinstance(inner, (class_shares.Balanced, class_shares.Weighted, mixtures.Mixed)):
        often = inner.frequencies()
    feature = view.examples.schema[name]
    width = columns[0].shape[1] if columns[0].ndim > 1 else len(feature.names)
    return prior_of(class_lists.class_lists(columns), often, count=width)


def _classes(view: View, count: int, label: _Label) -> class_lists.ClassLists:
    if label is None:
        raise ConfigError(
            "order goes by the label, and there is none. Pass label='the feature'; decode may return (x, y) with "
            "others."
        )
    names = [label] if isinstance(label, str) else label
    return class_lists.class_lists([view.of(column)[:count] for column in label_columns(view.examples, names)])
