"""Updates as fewer bytes: what arrives, what clients remember, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.refusals import refused
from tfdist.compression import QSGD, Float16, PowerSGD, TopK
from tfdist.errors import ConfigError
from tfdist.federated import App, FedAvg, Scaffold
from tfdist.federated.clients.update_codec import MEMORY, ROW, UpdateCodec
from tfdist.federated.federated_session import FederatedSession

RANDOM = np.random.default_rng(8)
LIKE = {
    "weights/000.kernel": np.zeros((40, 30), np.float32),
    "weights/001.bias": np.zeros(30, np.float32),
    "weights/002.kernel": np.zeros((30, 7), np.float32),
    "statistics/003.mean": np.zeros((3, 3), np.float32),
}
KERNELS = ("weights/000.kernel", "weights/002.kernel")


def update() -> dict[str, Any]:
    return {name: RANDOM.normal(size=array.shape).astype(np.float32) for name, array in LIKE.items()}


# codec, times fewer bytes of the kernels at least, largest error of the row's norm as a part of it
@pytest.mark.parametrize(
    ("compression", "fewer", "error"),
    [
        (None, 1, 0.0),
        ("none", 1, 0.0),
        ("float16", 2, 1e-3),
        ("bfloat16", 2, 1e-2),
        (QSGD(bits=8), 3.6, 0.2),
        ("natural", 3.4, 0.5),
        ("signsgd", 20, 1.0),
        (TopK(density=0.1), 4.9, 0.9),
        (TopK(density=1), 0.49, 0.0),
    ],
)
def test_updates_arrive_nearly_as_they_were_in_so_many_bytes(compression: Any, fewer: float, error: float) -> None:
    codec, sent = UpdateCodec(compression, LIKE), update()
    wire, _ = codec.encode(sent, {})
    found = codec.decode(wire)
    assert found.keys() == sent.keys()
    one, other = (np.concatenate([arrays[name].ravel() for name in KERNELS]) for arrays in (sent, found))
    assert np.linalg.norm(one - other) <= error * np.linalg.norm(one)
    for name in sent.keys() - set(KERNELS):
        assert np.array_equal(found[name], sent[name])
    assert codec.sent_bytes == sum(array.nbytes for array in wire.values())
    whole = sum(LIKE[name].nbytes for name in KERNELS)
    rest = sum(array.nbytes for name, array in LIKE.items() if name not in KERNELS)
    assert codec.sent_bytes - rest <= whole / fewer
    assert np.array_equal(codec.decode(codec.encode(sent, {})[0])[KERNELS[0]], found[KERNELS[0]])  # no other draws


@pytest.mark.parametrize("compression", ["topk", "signsgd"])
def test_what_was_left_out_is_remembered(compression: str) -> None:
    """The sum of all updates so far is what has arrived, plus what is remembered."""
    codec = UpdateCodec(compression, LIKE)
    given, arrived, state = np.zeros(1410), np.zeros(1410), dict[str, Any]()
    assert codec.has_memory
    for _ in range(5):
        one = update()
        wire, state = codec.encode(one, state)
        found = codec.decode(wire)
        given += np.concatenate([one[name].ravel() for name in KERNELS])
        arrived += np.concatenate([found[name].ravel() for name in KERNELS])
        assert np.abs(arrived + state[MEMORY] - given).max() < 1e-5
    assert np.abs(arrived - given).max() > 0.1
    assert not UpdateCodec("qsgd", LIKE).has_memory


def test_broken_numbers_stay_broken_and_are_not_remembered() -> None:
    """So a mean leaves the update out, and the next one is sound again."""
    for compression in ("qsgd", "topk", "signsgd", "float16"):
        codec, bad = UpdateCodec(compression, LIKE), update()
        bad[KERNELS[0]][3, 3] = np.nan
        wire, state = codec.encode(bad, {})
        assert not np.isfinite(codec.decode(wire)[KERNELS[0]]).all()
        again, _ = codec.encode(update(), state)
        assert np.isfinite(codec.decode(again)[KERNELS[0]]).all()


def test_what_is_no_encoded_update_is_refused() -> None:
    for compression in ("qsgd", "topk", "float16", "bfloat16"):
        codec = UpdateCodec(compression, LIKE)
        wire, _ = codec.encode(update(), {})
        words = wire[ROW]
        for wrong in (None, [1], words.astype(np.float64), words[..., :-1], words.reshape(-1, 1), np.int32(4)):
            with refused(ConfigError, name=ROW):
                codec.decode({**wire, ROW: wrong})
        with refused(ConfigError, name=ROW):
            codec.decode({name: array for name, array in wire.items() if name != ROW})
    codec = UpdateCodec("topk", LIKE)
    wire, _ = codec.encode(update(), {})
    for place in (1410, -1, 2**31 - 1):
        words = wire[ROW].copy()
        words[0, 0] = place
        with refused(ConfigError, name=ROW):
            codec.decode({**wire, ROW: words})


def model() -> None: ...


def test_codecs_that_need_an_answer_are_refused() -> None:
    for one in ("powersgd", "dgc", "randomk", "auto", PowerSGD(), Float16(codec=PowerSGD()), QSGD(start_after=5)):
        with refused(ConfigError, name="compression"):
            UpdateCodec(one, LIKE)
    with refused(ConfigError, name="compression"):
        UpdateCodec("gzip", LIKE)
    with refused(ConfigError, name="compression"):
        App(model, [()], Scaffold(), compression="qsgd")


@pytest.mark.parametrize(("before", "now"), [("qsgd", None), (None, "qsgd"), ("qsgd", "topk")])
def test_a_run_goes_on_with_its_compression(tmp_path: Path, before: str | None, now: str | None) -> None:
    def begin(compression: str | None, *, resume: bool) -> None:
        app = App(model, [()], FedAvg(), compression=compression)
        rules = app.rules(rounds=1, clients=1, seed=0)
        FederatedSession(app, rules, dict(LIKE), clients=1, folder=tmp_path, resume=resume)

    begin(before, resume=False)
    begin(before, resume=True)
    with refused(ConfigError, name="compression"):
        begin(now, resume=True)
