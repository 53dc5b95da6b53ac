"""Sizes and bandwidths of an all-reduce."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfdist.bench.all_reduce import reduced_message as message
from tfdist.errors import ConfigError
from tfdist.validation import as_bytes, shown_bytes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4", 4),
        ("4096", 4096),
        ("4K", 4096),
        ("4k", 4096),
        ("4KB", 4096),
        ("4 KiB", 4096),
        ("256M", 2**28),
        ("1G", 2**30),
        ("1.5G", 3 * 2**29),
        ("0.3 kb", 307),
        ("2TiB", 2**41),
    ],
)
def test_a_size_is_read(text: str, expected: int) -> None:
    assert as_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "K", "-4K", "4.5", "4.M", ".5M", "0", "0.0001K", "4P", "4K4", "four"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="a size is"):
        as_bytes(text)


@given(st.integers(1, 2**40))
def test_a_shown_size_reads_as_itself(number: int) -> None:
    assert as_bytes(shown_bytes(number)) == number


def test_sizes_go_from_the_smallest_to_the_largest() -> None:
    assert [shown_bytes(size) for size in message.sizes(4096, 2**28, 8)] == ["4K", "32K", "256K", "2M", "16M", "128M"]
    assert [shown_bytes(size) for size in message.sizes(4096, 2**28, 4)][-2:] == ["64M", "256M"]
    assert message.sizes(8, 8, 2) == (8,)


@pytest.mark.parametrize(("smallest", "largest"), [(10, 40), (4096, 1024)])
def test_sizes_that_make_no_sense_are_refused(smallest: int, largest: int) -> None:
    with pytest.raises(ConfigError, match="the smallest size is"):
        message.sizes(smallest, largest, 2)


@pytest.mark.parametrize(("workers", "factor"), [(2, 1.0), (3, 4 / 3), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_is_what_a_link_carries(workers: int, factor: float) -> None:
    assert message.bus_bandwidth(10**9, 0.5, workers) == pytest.approx(2e9 * factor)


@given(st.integers(4, 2**32))
def test_a_measurement_takes_1_to_50_calls(number: int) -> None:
    assert 1 <= message.calls(number) <= 50
    assert message.calls(number) >= message.calls(2 * number)
