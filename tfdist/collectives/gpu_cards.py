"""The cards of a group's GPUs, and whether the group reduces by NCCL, which takes each card once.

TensorFlow's collectives choose NCCL between GPUs only if an operation asks for it, and otherwise a ring through host
memory. Members that disagree, or two members with one card, cause an error, so all members decide in the same way, from
the cards of all.
"""

import ctypes
import itertools
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

#: values of TensorFlow's `communication_hint`
BETWEEN_CPUS, NCCL, RING = "auto", "nccl", "ring"
_DRIVER = "libcuda.so.1"
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # of this machine's kernel, which its containers share
_BUS_ID_BYTES = 32


class Communication(NamedTuple):
    """The way in which a group reduces, as TensorFlow's `communication_hint`, and a clause that says why."""

    hint: str
    why: str


def communication(cards: Sequence[str]) -> Communication:
    """Return the way in which members with these cards reduce; members that share a card have equal ones, a CPU has "".

    Example:
        >>> [communication(cards).hint for cards in (["", ""], ["a", "b"], ["a", "a"], ["a", ""])]
        ['auto', 'nccl', 'ring', 'ring']
    """
    if not any(cards) or len(cards) == 1:
        return Communication(BETWEEN_CPUS, "there is one member" if any(cards) else "all members are CPUs")
    if not all(cards):
        return Communication(RING, f"{cards.count('')} of {len(cards)} members are CPUs")
    card, sharing = Counter(cards).most_common(1)[0]
    if sharing > 1:
        return Communication(RING, f"{sharing} members share the card {card}, and NCCL takes each card once")
    return Communication(NCCL, "each member has a card of its own")


def of_devices(devices: Sequence[str]) -> list[str]:
    """Return the card of each device of this process, by a name that no other card of any machine has."""
    specs = [tf.DeviceSpec.from_string(device) for device in devices]
    if not any(spec.device_type == "GPU" for spec in specs):
        return [""] * len(devices)
    cards = _cards()
    return [cards[spec.device_index or 0] if spec.device_type == "GPU" else "" for spec in specs]


def split_over(logical: Sequence[int]) -> list[int]:
    """Return the number of each logical device's card, given the number of devices into which each card is split.

    Example:
        >>> split_over([1, 2, 1])
        [0, 1, 1, 2]
    """
    return list(itertools.chain.from_iterable([card] * count for card, count in enumerate(logical)))


def _cards() -> list[str]:
    visible = tf.config.get_visible_devices("GPU")
    machine = _BOOT.read_text().strip() if _BOOT.exists() else ""
    numbers = [int(card.name.rpartition(":")[2]) for card in visible]  # as CUDA counts in this process
    names = [f"{machine}/{bus_id(number) or number}" for number in numbers]
    counts = [len(tf.config.get_logical_device_configuration(card) or [card]) for card in visible]
    return [names[place] for place in split_over(counts)]


def bus_id(number: int, driver: str = _DRIVER) -> str | None:
    """Return the bus id of a card, by which NCCL distinguishes cards; None without CUDA's driver.

    The parts of a card that is split by MIG have the same bus id.
    """
    try:
        cuda = ctypes.CDLL(driver)
        card, found = ctypes.c_int(), ctypes.create_string_buffer(_BUS_ID_BYTES)
        failed = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(card), number)
        failed = failed or cuda.cuDeviceGetPCIBusId(found, _BUS_ID_BYTES, card)
    except (OSError, AttributeError):
        return None
    return None if failed else found.value.decode()
