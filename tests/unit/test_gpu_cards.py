"""Groups of devices that ask for NCCL, by the card of each member; and the slots in which cards are plugged."""

import subprocess
from pathlib import Path

import pytest

from tfdist.collectives import gpu_cards

DRIVER = """
#include <cstdio>
extern "C" int cuInit(unsigned) { return 0; }
extern "C" int cuDeviceGet(int* card, int number) { *card = 10 + number; return number > 1 ? 101 : 0; }
extern "C" int cuDeviceGetPCIBusId(char* found, int bytes, int card) {
    return std::snprintf(found, bytes, "0000:%02d:00.0", card) >= bytes;
}
"""


@pytest.mark.parametrize(
    ("cards", "hint"),
    [
        (["", "", ""], "auto"),
        (["a"], "auto"),
        (["a", "b"], "nccl"),
        (["a", "b", "c", "d", "e"], "nccl"),
        (["a", "b", "a"], "ring"),
        (["a", "", "b"], "ring"),
        (["", "a"], "ring"),
    ],
)
def test_members_ask_for_nccl_where_each_has_a_card_of_its_own(cards: list[str], hint: str) -> None:
    assert gpu_cards.communication(cards).hint == hint
    assert gpu_cards.communication(cards[::-1]).hint == hint, "whichever member asks"


def test_devices_of_a_split_card_have_one_card() -> None:
    assert gpu_cards.split_over([2, 1, 3]) == [0, 0, 1, 2, 2, 2]
    assert gpu_cards.split_over([]) == []


def test_processors_have_no_card() -> None:
    assert gpu_cards.of_devices(["CPU:0", "/job:worker/replica:0/task:1/device:CPU:1"]) == ["", ""]


def test_the_driver_tells_where_a_card_is_plugged_in(tmp_path: Path) -> None:
    source, driver = tmp_path / "driver.cc", tmp_path / "libcuda.so"
    source.write_text(DRIVER)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", driver, source], check=True, timeout=60)
    assert [gpu_cards.bus_id(number, str(driver)) for number in (0, 1, 2)] == ["0000:10:00.0", "0000:11:00.0", None]


def test_without_a_driver_the_place_is_unknown() -> None:
    assert gpu_cards.bus_id(0, "libcuda-that-is-not-there.so") is None
