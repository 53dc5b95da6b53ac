"""The manifest of a checkpoint: one spelling, and no other is read."""

import dataclasses
import hashlib
import json
import math
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.checkpoint import checkpoint_manifest as manifests
from tfdist.checkpoint.checkpoint_manifest import File, Manifest, canonical, plain_state
from tfdist.errors import ConfigError, ConfigTypeError, CorruptDataError

FILES = (File(name="arrays.safetensors", bytes=100, crc32c=5),)
STATE = {"epoch": 3, "history": {"loss": [0.25, 1e-300, -0.0]}, "name": "größe", "none": None, "on": True}
MADE = Manifest(step=12, state=STATE, files=FILES)

_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def signed(content: Any) -> bytes:
    """The bytes that somebody would write who knows the format, whatever it says."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return canonical({**rest, "digest": hashlib.sha256(canonical(rest)).hexdigest()})


@settings(max_examples=300, deadline=None, derandomize=True)
@given(state=st.dictionaries(st.text(st.characters(), max_size=5), _json, max_size=4), step=st.integers(0, 10**12 - 1))
def test_any_state_comes_back(state: dict[str, Any], step: int) -> None:
    made = Manifest(step=step, state=plain_state(state), files=FILES)
    found = Manifest.from_bytes(made.to_bytes())
    assert found == made
    assert found.digest == made.digest
    assert repr(found.state) == repr(json.loads(json.dumps(state, sort_keys=True)))


def test_losses_may_be_anything() -> None:
    found = Manifest.from_bytes(dataclasses.replace(MADE, state={"x": [math.nan, math.inf, -math.inf]}).to_bytes())
    assert str(found.state) == "{'x': [nan, inf, -inf]}"


def test_the_digest_tells_any_difference() -> None:
    others = [
        dataclasses.replace(MADE, step=13),
        dataclasses.replace(MADE, state={**STATE, "epoch": 4}),
        dataclasses.replace(MADE, files=(dataclasses.replace(FILES[0], crc32c=6),)),
    ]
    assert len({MADE.digest, *(other.digest for other in others)}) == 4


def sealed(crc32c: int) -> Manifest:
    return dataclasses.replace(MADE, files=(dataclasses.replace(FILES[0], crc32c=crc32c),))


def of_parts(*parts: int | None, count: int = 2) -> Manifest:
    files = tuple(File(name=f"{place}.safetensors", bytes=1, crc32c=2, part=part) for place, part in enumerate(parts))
    return Manifest(step=12, state={}, files=files, parts=count)


def test_parts_of_workers_come_back_and_what_has_none_is_written_as_it_always_was() -> None:
    made = of_parts(None, 0, 1, 1)
    for one in (made, of_parts(0, count=1), *(sealed(crc32c) for crc32c in (0, 2**32 - 1))):
        assert Manifest.from_bytes(one.to_bytes()) == one
    assert json.loads(made.to_bytes())["version"] == 2
    assert MADE.digest == "4ac34254f142750d544fec7347daa7d61e5c998ef584a4bc784aab3a00fb5623"


@pytest.mark.parametrize(
    ("made", "fields"),
    [
        (of_parts(None, 0), {"name": "parts", "received": 2, "workers": [1]}),
        (of_parts(None, 1), {"name": "parts", "received": 2, "workers": [0]}),
        (of_parts(None, 0, 1, 2), {"name": "parts", "received": 2, "workers": []}),
        (of_parts(None, count=10**6), {"name": "parts", "received": 10**6}),
        (of_parts(0, count=0), {"name": "parts", "received": 0, "workers": []}),
        (of_parts(None, 0, -1, 1), {"name": "part of a file", "received": -1}),
    ],
)
def test_parts_that_cannot_be_are_refused(made: Manifest, fields: dict[str, Any]) -> None:
    with refused(CorruptDataError, path="manifest.json", **fields):
        Manifest.from_bytes(
            signed({**json.loads(made.to_bytes()), "files": [dataclasses.asdict(f) for f in made.files]})
        )


@pytest.mark.parametrize("made", [MADE, of_parts(None, 0, 1)])
def test_every_flip_of_a_byte_is_refused(made: Manifest) -> None:
    data = made.to_bytes()
    for place in range(len(data)):
        for value in range(256):
            if value != data[place]:
                with pytest.raises(CorruptDataError):
                    Manifest.from_bytes(data[:place] + bytes([value]) + data[place + 1 :])


def test_every_cut_and_addition_is_refused() -> None:
    data = MADE.to_bytes()
    for place in range(len(data)):
        for other in (data[:place], data[:place] + data[place + 1 :], data[:place] + b" " + data[place:]):
            with pytest.raises(CorruptDataError):
                Manifest.from_bytes(other)
    for end in (b"\n", b" ", b"\0", b"{}"):
        with pytest.raises(CorruptDataError):
            Manifest.from_bytes(data + end)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "tfdist.data"},
        {"version": 2},
        {"version": 2, "parts": 1},
        {"version": 0},
        {"version": True},
        {"more": 1},
        {"step": -1},
        {"step": 10**12},
        {"step": 1.0},
        {"step": True},
        {"state": []},
        {"files": {}},
        {"files": 3},
        {"files": [3]},
        {"files": [["name", "bytes", "crc32c"]]},
        {"files": [{"name": "a"}]},
        {"files": [{"name": "a", "bytes": -1, "crc32c": 0}]},
        {"files": [{"name": "a", "bytes": 1, "crc32c": 1 << 32}]},
        {"files": [{"name": "manifest.json", "bytes": 1, "crc32c": 0}]},
        {"files": [{"name": "a", "bytes": 1, "crc32c": 0}] * 2},
        *({"files": [{"name": name, "bytes": 1, "crc32c": 0}]} for name in ("../a", "/a", "a/b", ".a", "", "a\0", 3)),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(CorruptDataError):
        Manifest.from_bytes(signed({**json.loads(MADE.to_bytes()), **change}))


def test_a_later_version_is_named() -> None:
    with refused(CorruptDataError, name="version", received=3, path="manifest.json"):
        Manifest.from_bytes(signed({**json.loads(MADE.to_bytes()), "version": 3}))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"{" * 1000,
        b"[" * 1_000_000,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
        b"1" * 10_000,
        b" " * (17 << 20),
    ],
)
def test_no_manifest_at_all(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CorruptDataError):
            Manifest.from_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_the_longest_is_read_with_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "LARGEST_BYTES", len(MADE.to_bytes()))
    assert Manifest.from_bytes(MADE.to_bytes()) == MADE
    with refused(ConfigError, name="state"):
        dataclasses.replace(MADE, state={**STATE, "more": 1}).to_bytes()


@pytest.mark.parametrize(
    ("state", "name", "received"),
    [
        ({"a": {1: 2}}, "state['a']", 1),
        ({"a": [0, {"b": {3}}]}, "state['a'][1]['b']", {3}),
        ({"a": object}, "state['a']", object),
        ([], "state", []),
    ],
)
def test_what_is_no_json_is_named(state: Any, name: str, received: object) -> None:
    with refused(ConfigTypeError, name=name, received=received):
        plain_state(state)


def test_a_state_that_contains_itself() -> None:
    state: dict[str, Any] = {}
    state["again"] = state
    with refused(ConfigError, name="state", received=None):
        plain_state(state)


def test_a_state_is_copied() -> None:
    state = {"history": {"loss": [1.0]}, "pair": (1, 2)}
    copied = plain_state(state)
    state["history"]["loss"].append(2.0)
    assert copied == {"history": {"loss": [1.0]}, "pair": [1, 2]}
