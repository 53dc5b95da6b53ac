"""A directory of examples as a `tf.data.Dataset` for `fit`."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfdist import native, validation
from tfdist.data.format.schema import TEXT
from tfdist.data.order import batch_positions, class_shares, epoch_orders, mixtures
from tfdist.data.reading import read_dataset as pipelines
from tfdist.data.reading.checked_examples import Examples
from tfdist.data.reading.example_cache import DecodedCache
from tfdist.data.reading.joined_columns import fetcher_of
from tfdist.data.reading.read_dataset import Reading, position_of
from tfdist.data.reading.view import View, view_of
from tfdist.errors import ConfigError, ConfigTypeError
from tfdist.storage.block_cache import BlockCache

_BLOCK_BYTES = 2 << 20  # read in one go, from a disk that spins or from a store
_WINDOW = 64  # blocks that are mixed
_REMOTE_CACHE_BYTES = 1 << 30

Function = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Roles:
    """What features are for `fit`: y, x (empty: all others), and weight.

    ``origin`` is where the features come from, for messages: "the examples have", "decode returns".
    """

    label: str | None
    inputs: Sequence[str]
    weight: str | None
    origin: str

    def require(self, features: Mapping[str, Any]) -> None:
        """Refuse roles that these features, which have a dtype, cannot have."""
        named = [("label", self.label), *(("inputs", name) for name in self.inputs), ("weight", self.weight)]
        there = ", ".join(map(repr, features))
        for argument, name in named:
            if name is not None and name not in features:
                way = " Return it too, or name one of these." if self.origin.endswith("returns") else ""
                raise ConfigError(
                    f"{argument} names the feature {name!r}; {self.origin} {there}.{way}", name=argument, received=name
                )
        if self.weight is not None and getattr(features[self.weight], "dtype", TEXT) == TEXT:
            raise ConfigError(
                f"weight names the feature {self.weight!r}, which is no number; a weight must be one.",
                name="weight",
                received=self.weight,
            )

    def element(self, found: Mapping[str, Any], padding: tf.Tensor | None) -> Any:
        """(x, y), (x, y, weight) or x."""
        self.require(found)
        names = list(self.inputs) or [name for name in found if name not in (self.label, self.weight)]
        x = found[names[0]] if len(names) == 1 else {name: found[name] for name in names}
        if self.label is None:
            return x
        weights = None if self.weight is None else tf.cast(found[self.weight], tf.float32)
        if padding is not None:
            weights = padding if weights is None else weights * padding
        return (x, found[self.label]) if weights is None else (x, found[self.label], weights)


def roles(label: Any, inputs: Any, weight: Any, *, origin: str) -> Roles:
    if isinstance(label, (list, tuple, set, Mapping)):
        raise validation.mismatch(
            "label",
            label,
            "the name of one feature. Let decode return several labels as one, a dict by the names of the model's "
            "outputs: {**example, 'label': {'a': ..., 'b': ...}}.",
        )
    if isinstance(inputs, bytes) or not isinstance(inputs, (str, Sequence, set, frozenset)):
        raise validation.mismatch("inputs", inputs, "a feature's name, or a list of names.", kind=ConfigTypeError)
    names = [validation.text("inputs", name) for name in ([inputs] if isinstance(inputs, str) else inputs)]
    found = Roles(
        None if label is None else validation.text("label", label),
        names,
        None if weight is None else validation.text("weight", weight),
        origin,
    )
    if found.weight is not None and found.label is None:
        raise ConfigError(
            f"weight is {weight!r}, and without a label there is nothing to weigh. Name the label, or leave weight "
            "out.",
            name="weight",
            received=weight,
        )
    return found


def read(
    directory: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Examples | View,
    *,
    global_batch_size: int,
    seed: int = 0,
    order: str | Mapping[int, float] = "full",
    tail: str | None = None,
    label: str | None = None,
    inputs: Sequence[str] | str = (),
    weight: str | None = None,
    decode: Function | None = None,
    augment: Function | None = None,
    cache: str | os.PathLike[str] | None = None,
    on_corrupt: str = "raise",
    verify: str = "first",
    device: str | None = None,
    state: Mapping[str, Any] | None = None,
    remote_cache: BlockCache | None = None,
    storage_options: Mapping[str, Any] | None = None,
    follow_symlinks: bool = False,
    ops: bool | None = None,
) -> Reading:
    """Read a directory of examples: shuffled globally, each once per epoch, the same on any number of workers.

    The examples of a batch follow from (seed, epoch, position) alone. Under a tfdist strategy each worker reads its
    slice of every global batch; elsewhere the dataset yields whole global batches.

    Args:
        directory: what `tfdist.data.write` made; a path or an fsspec URL. Or TFRecord files of other writers: a folder,
            one file, or several by a wildcard, also compressed by GZIP or ZLIB. Their schema is inferred from all
            records when they are first read, and logged; see `tfdist.data.index`. Or a list of directories, or what
            `tfdist.data.open`, `tfdist.data.select` or `tfdist.data.mix` returned.
        global_batch_size: examples of a batch, over all replicas.
        seed: of the order, and of augmentation.
        order: "full" permutes all examples, anew in each epoch; "block" permutes blocks of neighbours and mixes the
            examples of 64 blocks, for object stores and spinning disks; "none" keeps the order of writing; "balanced"
            gives each class of ``label`` the same share; a mapping of labels to weights gives them theirs. With the
            last two an epoch has as many examples as there are, some more than once.
        tail: what becomes of a last batch with fewer examples: "pad" fills it with examples of weight 0, so that all
            batches have one shape; "drop" leaves it out; "keep" yields it as it is. Default: "pad" with a label, "keep"
            where nothing has a weight.
        label: the feature to learn. Default: the one that the directory names; without any, batches are x alone.
        inputs: the features that are x, a dict unless it is one. Default: all but label and weight.
        weight: the feature that is the sample weight.
        decode: a deterministic function of an example's features (a dict of tensors) that returns its features, such as
            a decoded and resized picture.
        augment: a function of an example's features and of a seed (int32 ``[2]``, for `tf.image.stateless_*` and
            `tf.random.stateless_*`) that returns its features. The seed follows from (seed, epoch, example), so results
            do not depend on workers.
        cache: keeps the results of ``decode``, in "memory" or in a folder on a local disk.
        on_corrupt: "raise"; or "skip" a corrupt example with a line in the log: another replaces it with weight 0, so
            that the number of steps stays; or "verify" every record before anything is read. An example for which
            ``decode`` or ``augment`` raises an error is corrupt, too.
        verify: whether checksums are checked "first", when a record is first read, "always", or "never".
        device: prefetch batches into the memory of this device ("/gpu:0"). Under a tfdist strategy it does nothing.
        state: where to resume: what `Reading.state` returned.
        remote_cache: keeps blocks of remote files. Default: 1 GiB in memory.
        storage_options: what fsspec's driver takes, such as ``{"anon": True}``; for URLs alone.
        follow_symlinks: whether files of a local directory may be symbolic links out of it, as in the caches of DVC and
            of hubs. Default: they are refused.
        ops: whether the compiled reader is used. Default: if it can be compiled and TFDIST_NATIVE is not 0.
    Returns:
        A dataset of (x, y, weight); without weight if nothing can have the weight 0 and none is named; x alone without
        a label.
    Raises:
        ConfigError: an argument cannot be used; there is no such directory or feature; ``decode`` or ``augment`` does
            not return a dict of dense tensors.
        CorruptDataError: manifest or index cannot be trusted, or a shard is not the one that the manifest describes. A
            corrupt or undecodable example raises it in iterations and in `fit`.
        DataChangedError: in iterations and in `fit`: the directory was overwritten or repaired since it was opened.

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
    for name, function in (("decode", decode), ("augment", augment)):
        if function is not None and not callable(function):
            raise validation.mismatch(name, function, "a function, or None.", kind=ConfigTypeError)
    is_remote = isinstance(directory, (str, list, tuple)) and "://" in str(directory)
    view = view_of(
        directory,
        storage_options=storage_options,
        cache=remote_cache or (BlockCache(limit_bytes=_REMOTE_CACHE_BYTES) if is_remote else None),
        follow_symlinks=follow_symlinks,
    )
    examples = view.examples
    if examples.paths is not None:  # of a store when they are read first
        examples.binding.require(range(len(examples.manifest.shards)))
    label = examples.manifest.label if label is None else label
    last = "augment" if augment is not None else "decode" if decode is not None else ""
    named = roles(label, inputs, weight, origin=f"{last} returns" if last else "the examples have")
    if not last:  # else what it returns is looked at
        named.require(examples.schema)
    tail = tail or ("keep" if label is None else "pad")
    chosen = _order(view, order, label)
    if label is None and (tail == "pad" or on_corrupt == "skip"):
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
        seed=seed,
        global_batch_size=global_batch_size,
        tail=tail,
        decode=decode,
        augment=augment,
        cache=None if cache is None else DecodedCache(cache, len(examples)),
        finish=named.element,
        weighs=label is not None and (tail == "pad" or on_corrupt == "skip"),
        native=None if ops is False or cache is not None or examples.paths is None else native.records(),
    )
    return Reading(pipeline, position_of(pipeline, None if state is None else dict(state)), device)


def _order(view: View, order: Any, label: str | None) -> epoch_orders.Order:
    if view.mixture is None:
        inner = _order_of(view, len(view), order, label)
        return inner if view.ids is None else mixtures.Chosen(inner, view.ids)
    if isinstance(order, Mapping) or order == "balanced":
        raise ConfigError(
            f"order is {validation.shown(order)}, and a mixture has the shares of its sources. Pass 'full', 'block' or "
            "'none'; or read the directories as a list, with shares of classes.",
            name="order",
            received=validation.shown(order),
        )
    mixed = view.mixture.order([_order_of(view, size, order, label) for size in view.mixture.sizes.values()])
    return mixed if view.ids is None else mixtures.Chosen(mixed, view.ids)


def _order_of(view: View, count: int, order: Any, label: str | None) -> epoch_orders.Order:
    if isinstance(order, Mapping):
        return class_shares.Weighted(view.of(view.examples.integers(_needed(label))), dict(order))
    validation.one_of("order", order, ("full", "block", "none", "balanced"), hint="Or a mapping of labels to weights.")
    if order == "balanced":
        return class_shares.Balanced(view.of(view.examples.integers(_needed(label))))
    if order == "full":
        return epoch_orders.Full(count)
    if order == "none":
        return epoch_orders.Sequential(count)
    mean = max(1, view.examples.manifest.total_bytes // len(view.examples))
    return epoch_orders.Block(count, max(1, min(count, _BLOCK_BYTES // mean)), _WINDOW)


def _needed(label: str | None) -> str:
    if label is None:
        raise ConfigError("order goes by the label, and the directory names none. Pass label='the feature'.")
    return label
