"""The state of shards for another number of shards, by every rule."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.refusals import refused
from tfdist.checkpoint import ShardedState
from tfdist.checkpoint.state_resizing import DOES, resharded
from tfdist.errors import ConfigError

SIZES = [(2, 2), (2, 3), (3, 2), (2, 1), (1, 3), (5, 3), (3, 7)]
RULES = tuple(DOES)


def every(rule: str, shards: list[Any], count: int) -> list[Any]:
    return [resharded(rule, shards, index=index, count=count) for index in range(count)]


@pytest.mark.parametrize("rule", RULES)
def test_as_many_have_what_they_had(rule: str) -> None:
    shards = [np.array([0.1, value], np.float32) for value in range(3)]
    for found, before in zip(every(rule, shards, 3), shards, strict=True):
        assert found is before


@pytest.mark.parametrize(("old", "new"), SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8"])
def test_a_sum_stays_and_is_divided_evenly(old: int, new: int, dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    shards = [(np.arange(1, 7).reshape(2, 3) * (place + 1)).astype(kind) for place in range(old)]
    found = every("sum", shards, new)
    total = np.sum([shard.astype(np.float64) for shard in shards], axis=0)
    again = np.sum([shard.astype(np.float64) for shard in found], axis=0)
    np.testing.assert_allclose(again, total, rtol=0 if kind.kind in "iu" else 4 * float(ml_dtypes.finfo(kind).eps))
    assert all((shard.dtype, shard.shape) == (kind, (2, 3)) for shard in found)
    if old != new:
        assert max(np.max(abs(one.astype(float) - two.astype(float))) for one in found for two in found) <= 1


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int8", 60), ("uint8", 200), ("int32", 2**31 - 1), ("int64", 2**62 + 1), ("uint64", 2**64 - 1)],
)
def test_integers_are_exact_where_their_sum_needs_more_bits(dtype: str, value: int) -> None:
    shards = [np.array([value - place, -place % 3, place], dtype) for place in range(3)]
    total = [sum(int(shard[place]) for shard in shards) for place in range(3)]
    found = every("sum", shards, 4)
    assert [sum(int(shard[place]) for shard in found) for place in range(3)] == total
    assert every("mean", shards, 2)[0].tolist() == [value - 1, 1, 1]
    if "64" not in dtype:
        with refused(ConfigError, name="rule", received="sum"):
            resharded("sum", shards, index=0, count=1)
    limits = np.iinfo(dtype)
    fitting = [np.array([limits.min, limits.max], dtype), np.zeros(2, dtype)]
    assert resharded("sum", fitting, index=0, count=1).tolist() == [limits.min, limits.max]
    for size in (0, 1):
        some = resharded("sum", [one[:size] for one in fitting], index=0, count=1)
        assert some.tolist() == [limits.min][:size]


def test_complex_numbers_keep_both_parts() -> None:
    shards = [np.array([1 + 2j, 4j], np.complex64), np.array([3, 2j], np.complex64)]
    assert every("sum", shards, 1)[0].tolist() == [4 + 2j, 6j]
    assert every("mean", shards, 1)[0].tolist() == [2 + 1j, 3j]


def test_means_of_integers_are_rounded_as_those_of_floats() -> None:
    shards = list(np.random.default_rng(3).integers(-9, 9, (4, 50)))
    np.testing.assert_array_equal(resharded("mean", shards, index=0, count=3), np.rint(np.mean(shards, axis=0)))
    floats = [shard.astype(np.float32) for shard in shards]
    np.testing.assert_array_equal(resharded("mean", floats, index=0, count=3), np.mean(floats, axis=0))
    bools = [np.array([True, True, False]), np.array([True, False, False]), np.array([True, True, True])]
    assert resharded("mean", bools, index=0, count=2).tolist() == [True, True, False]


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_rows_stay_in_order_and_are_divided_evenly(old: int, new: int) -> None:
    rows = np.random.default_rng(1).normal(size=(11, 2)).astype("f4")
    found = every("concatenate", list(np.array_split(rows, old)), new)
    np.testing.assert_array_equal(np.concatenate(found), rows)
    assert max(len(one) for one in found) - min(len(one) for one in found) <= 1


@pytest.mark.parametrize(("old", "new"), SIZES)
def test_who_comes_has_a_copy_or_nothing(old: int, new: int) -> None:
    shards = [np.array([value, 7]) for value in range(old)]
    assert [shard[0] for shard in every("keep", shards, new)] == [index % old for index in range(new)]
    if old != new:
        assert all(not shard.any() and shard.dtype == shards[0].dtype for shard in every("reset", shards, new))


@pytest.mark.parametrize(
    ("rule", "shards", "name", "received"),
    [
        ("refuse", [np.zeros(2), np.zeros(2)], "rule", "refuse"),
        ("sum", [np.zeros(2), np.zeros(3)], "shards", "float64[2], float64[3]"),
        ("sum", [np.zeros(2), np.zeros(2, "f4")], "shards", "float64[2], float32[2]"),
        ("mean", [np.zeros(2), np.zeros(3)], "shards", "float64[2], float64[3]"),
        ("sum", [np.zeros(2, "?"), np.zeros(2, "?")], "rule", "sum"),
        ("concatenate", [np.zeros(()), np.zeros(())], "rule", "concatenate"),
        ("concatenate", [np.zeros((2, 2)), np.zeros((2, 3))], "shards", "float64[2, 2], float64[2, 3]"),
    ],
)
def test_what_cannot_be_is_refused(rule: str, shards: list[Any], name: str, received: str) -> None:
    with refused(ConfigError, name=name, received=received):
        resharded(rule, shards, index=0, count=3)


def test_a_declaration_is_checked() -> None:
    assert ShardedState("the sums", iter([1, 2]), rule="sum").variables == (1, 2)
    with refused(ConfigError, name="rule", received="summ"):
        ShardedState("the sums", [], rule="summ")  # type: ignore[arg-type]
    with refused(ConfigError, name="axis", received="host"):
        ShardedState("the sums", [], rule="sum", axis="host")  # type: ignore[arg-type]
    with refused(ConfigError, name="name", received=" "):
        ShardedState(" ", [], rule="sum")
