"""Selection of examples by the name of their source, by number, by values of features, or by the hash of a key."""

import hashlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from tfdist import validation
from tfdist.data.examples.checked_examples import Examples, spans
from tfdist.data.examples.computed_examples import Computed, ComputedFetcher
from tfdist.data.examples.feature_values import values_of
from tfdist.data.examples.joined_examples import Joined
from tfdist.data.format import record_framing
from tfdist.data.order.epoch_orders import mixed, round_keys
from tfdist.data.reading.view import View, view_of
from tfdist.errors import ConfigError, ConfigTypeError

_Ids = NDArray[np.int64]
Condition = Callable[[NDArray[Any]], Any] | Collection[Any]


def select(
    source: Any,
    *,
    sources: str | Collection[str] | None = None,
    numbers: Any = None,
    where: Mapping[str, Condition] | None = None,
    parts: Mapping[str, float] | None = None,
    part: str | None = None,
    key: str | None = None,
) -> View:
    """Choose some of the examples of a source. Nothing is copied, and each example keeps its number and place.

    An example must meet all conditions. A saved state of reading stays valid as long as the same examples are chosen.

    Args:
        source: a directory, a list of directories, or the result of `tfdist.data.open` or of this function. With
            ``sources`` it may also be the result of `tfdist.data.mix`.
        sources: the names of the sources to keep: those of a mixture, or the paths of a list of directories. Each
            example of a mixture's sources is then there once, and shares no longer apply.
        numbers: a slice, a range or an array of numbers, each at most once; or an array of booleans, one per example.
        where: conditions by the name of a feature that is one number or one text. A condition is a set of values to
            keep, or a function that takes the values of all examples, an array ``[examples]``, and returns booleans.
        parts: the shares of parts by name, with a sum of at most 1: ``{"train": 0.9, "test": 0.1}``. The hash of an
            example's key alone decides its part, so examples stay in their part when others are added.
        part: the name of the part to read.
        key: the feature that is hashed, one integer or one text, such as the number of a patient. All examples with the
            same value are in one part. Default: the whole record, so equal examples are in one part.
    Returns:
        A view that `tfdist.data.read` and `tfdist.data.mix` accept.
    Raises:
        ConfigError: a feature is neither one number nor one text, a number is out of range, or no example is left.

    Example:
        >>> import tempfile, numpy as np, tfdist
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = tfdist.data.write({"x": np.arange(100), "label": np.arange(100) % 3}, folder)
        ...     twos = tfdist.data.select(folder, where={"label": {2}})
        ...     parts = {"train": 0.8, "test": 0.2}
        ...     train, test = (tfdist.data.select(twos, parts=parts, part=name) for name in parts)
        ...     len(twos), len(train) + len(test)
        (33, 33)
    """
    view = view_of(source, "source")
    if sources is not None:
        view = _of_sources(view, sources)
    if view.mixture is not None:
        raise ConfigError(
            "source is a mixture; choose from its sources with sources=..., or mix what was selected.", name="source"
        )
    kept = np.ones(len(view), bool)
    ids = view.all_ids()
    if numbers is not None:
        chosen = _numbers(numbers, len(view))
        ids, kept = ids[chosen], kept[chosen]
    for name, condition in _conditions(where).items():
        kept &= _holds(name, condition, _values(view.examples, name, "where")[ids])
    if (parts is None) != (part is None) or (key is not None and parts is None):
        raise ConfigError("parts, the shares by name, and part, one of these names, go together; key is for both.")
    if parts is not None:
        low, high = _bounds(parts, part)
        hashes = _key_hashes(view.examples, key)[ids]
        kept &= (hashes >= low) & (hashes < high)
    if not kept.any():
        raise ConfigError(f"no example of {len(view)} is left of {view.examples.url}; widen the conditions.")
    return View(view.examples, ids[kept])


def _conditions(where: Any) -> Mapping[str, Condition]:
    if where is not None and not isinstance(where, Mapping):
        required = 'conditions by the name of a feature: {"label": {2}} or {"x": lambda values: values > 0}.'
        raise validation.mismatch("where", where, required, kind=ConfigTypeError)
    return where or {}


def _of_sources(view: View, sources: str | Collection[str]) -> View:
    """Return the examples of these sources, without the shares of a mixture."""
    several = view.examples.names if isinstance(view.examples, Joined) else [view.examples.url]
    names = several if view.mixture is None else list(view.mixture.sizes)
    wanted = [sources] if isinstance(sources, str) else sources
    if not isinstance(wanted, Collection) or not all(isinstance(name, str) for name in wanted):
        raise validation.mismatch("sources", sources, "a name, or a list of names.", kind=ConfigTypeError)
    if unknown := [name for name in wanted if name not in names]:
        raise ConfigError(
            f"sources names {unknown[0]!r}; there are {', '.join(map(repr, names))}.",
            name="sources",
            received=unknown[0],
        )
    ids = view.all_ids()
    if isinstance(view.examples, Joined) and len(names) == len(view.examples.parts):
        part = np.searchsorted(view.examples.firsts, ids, side="right") - 1
        ids = ids[np.isin(part, [names.index(name) for name in wanted])]
    elif not wanted:
        ids = ids[:0]
    return View(view.examples, ids)


def _numbers(numbers: Any, count: int) -> NDArray[Any]:
    if isinstance(numbers, (slice, range)):
        found = np.arange(count)[numbers] if isinstance(numbers, slice) else np.array(numbers, np.int64)
    else:
        found = np.asarray(numbers)
    if found.dtype == bool and found.shape == (count,):
        return np.flatnonzero(found)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        required = f"a slice, a range, an array of integers, or one of {count} booleans."
        raise validation.mismatch("numbers", numbers, required, kind=ConfigTypeError)
    found = found.astype(np.int64)
    if found.size and not (found.min() >= 0 and found.max() < count):
        raise ConfigError(
            f"numbers are from {found.min()} to {found.max()}; there are {count} examples, from 0.",
            name="numbers",
            received=int(found.max()),
        )
    if len(np.unique(found)) < len(found):
        raise ConfigError(
            "numbers has some number twice; each example may be chosen once. tfdist.data.mix repeats examples.",
            name="numbers",
        )
    return found


def _holds(name: str, condition: Condition, values: NDArray[Any]) -> NDArray[np.bool_]:
    if callable(condition):
        found = np.asarray(condition(values))
        if found.dtype != bool or found.shape != values.shape:
            raise ConfigError(
                f"the condition of {name!r} returned {found.dtype.name} of shape {found.shape}; it must return one "
                f"bool for each of {len(values)} values.",
                name="where",
            )
        return found
    if isinstance(condition, (str, bytes)) or not isinstance(condition, Collection):
        required = "a set of values, or a function from an array of values to booleans."
        raise validation.mismatch(f"the condition of {name!r}", condition, required, kind=ConfigTypeError)
    given = condition.ravel().tolist() if isinstance(condition, np.ndarray) else condition
    wanted = frozenset(one.encode() if isinstance(one, str) else one for one in given)
    if values.dtype == object:
        return np.fromiter((value in wanted for value in values), bool, len(values))
    # of one dtype: NumPy would make floats of int64 and uint64 together
    return np.isin(values, np.array([one for one in wanted if _is_of(values.dtype, one)], values.dtype))


def _is_of(dtype: np.dtype[Any], value: Any) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(dtype.type(value).item() == value)
    except (OverflowError, TypeError, ValueError):
        return False


def _bounds(parts: Mapping[str, float], part: Any) -> tuple[float, float]:
    if not isinstance(parts, Mapping) or not parts:
        raise validation.mismatch("parts", parts, 'shares by name: {"train": 0.9, "test": 0.1}.', kind=ConfigTypeError)
    validation.one_of("part", part, tuple(parts))
    shares = [validation.number(f"share of {name}", share, minimum=0.0) for name, share in parts.items()]
    if math.fsum(shares) > 1 + 1e-9:
        raise ConfigError(f"parts have the shares {shares}; they must be 1 in all at most.", name="parts")
    place = list(parts).index(part)
    is_last = place == len(shares) - 1 and math.fsum(shares) > 1 - 1e-9
    return math.fsum(shares[:place]), 2.0 if is_last else math.fsum(shares[: place + 1])


def _values(examples: Examples, name: str, argument: str) -> NDArray[Any]:
    feature = examples.schema.get(name)
    if feature is None or feature.shape != ():
        raise ConfigError(
            f"{argument} names the feature {name!r}, which is {feature}; it must be one number or one text. There are "
            f"{', '.join(map(repr, examples.schema))}.",
            name=argument,
            received=name,
        )
    return np.asarray(values_of(examples, name))


def _key_hashes(examples: Examples, key: str | None) -> NDArray[np.float64]:
    """Return a number in [0, 1) for each example, which depends only on its key."""
    if key is None:
        return _unit(_checksums(examples))
    values = _values(examples, key, "key")
    if values.dtype == object:
        return _unit(np.array([_digest(value) for value in values], np.uint64))
    if values.dtype.kind not in "iub":
        raise ConfigError(
            f"key names the feature {key!r}, which is {examples.schema[key]}; it must be one integer or one text.",
            name="key",
            received=key,
        )
    return _unit(values.astype(np.uint64))


def _digest(value: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    keys = round_keys("part")
    low, high = (words & np.uint64(0xFFFFFFFF)).astype(np.uint32), (words >> np.uint64(32)).astype(np.uint32)
    first = mixed(mixed(low, keys[0]) ^ high, keys[1])
    second = mixed(mixed(high, keys[2]) ^ first, keys[3])
    return (first.astype(np.float64) * 2.0**21 + (second >> np.uint32(11))) / 2.0**53


def _checksums(examples: Examples) -> NDArray[np.uint64]:
    """Return the checksums of all records: read from behind the payloads, or computed if examples are computed."""
    if isinstance(examples, Joined):
        return np.concatenate([_checksums(part) for part in examples.parts])
    found = np.empty(len(examples), np.uint64)
    fetcher = ComputedFetcher(examples, skip=False) if isinstance(examples, Computed) else None
    for span in spans(len(examples)):
        ids = np.asarray(span, np.int64)
        if fetcher is not None:
            payloads, _ = fetcher.payloads(ids)
            found[ids] = record_framing.masked_each(np.array([google_crc32c.value(one) for one in payloads], np.uint32))
            continue
        shards, offsets, lengths = examples.locate(ids)
        ends = offsets + record_framing.HEADER_BYTES + lengths
        names = [examples.manifest.shards[shard].file for shard in shards.tolist()]
        ranges: Sequence[tuple[str, int, int]] = [
            (name, end, 4) for name, end in zip(names, ends.tolist(), strict=True)
        ]
        with examples.binding.reading(np.unique(shards).tolist()):
            data = b"".join(examples.storage.read_ranges(ranges))
        found[ids] = np.frombuffer(data, "<u4")
    return found
