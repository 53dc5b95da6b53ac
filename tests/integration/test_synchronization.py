"""Workers that meet seldom, beside a simulation on one device and beside data parallelism."""

import functools
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.integration import case_pools
from tests.integration.case_pools import DEADLINE_SECONDS, start
from tests.integration.forks import Forks
from tests.integration.resting import RestingPool
from tfdist.testing.pool import WorkerPool

call = functools.partial(case_pools.call, of="synchronization_cases")
release = pytest.mark.release  # one more combination of what others cover


@pytest.fixture(scope="module")
def pools(forking: Forks) -> Iterator[dict[int, WorkerPool]]:
    with ExitStack() as stack:
        yield {workers: stack.enter_context(start(forking, "multi-worker", workers)) for workers in (2, 3)}


def same(one: Any, other: Any, within: float = 1e-6) -> None:
    np.testing.assert_allclose(one, other, rtol=0, atol=within)


@pytest.mark.parametrize(
    ("workers", "optimizer", "normalizes"), [(2, "adam", True), pytest.param(3, "momentum", False, marks=release)]
)
def test_to_meet_in_every_step_is_data_parallelism(
    pools: dict[int, WorkerPool], workers: int, optimizer: str, normalizes: bool
) -> None:
    for seen in call(pools[workers], "data_parallel", optimizer=optimizer, normalizes=normalizes):
        same(seen["met"]["weights"], seen["reduced"]["weights"])
        for name, values in seen["reduced"]["history"].items():
            same(seen["met"]["history"][name], values)


@pytest.mark.parametrize(
    ("workers", "optimizer", "normalizes", "moments"),
    [(2, "adam", True, True), (3, "momentum", False, False), pytest.param(3, "sgd", False, True, marks=release)],
)
def test_local_steps_are_those_of_the_simulation(
    pools: dict[int, WorkerPool], workers: int, optimizer: str, normalizes: bool, moments: bool
) -> None:
    found = call(pools[workers], "local_sgd", every=4, optimizer=optimizer, normalizes=normalizes, moments=moments)
    for seen in found:
        same(seen["weights"], found[0]["simulated"])
        assert seen["weights"] == found[0]["weights"]
        assert seen["history"] == found[0]["history"]


def test_workers_exchange_what_was_compiled_last_and_end_with_the_mean_of_averages(
    pools: dict[int, WorkerPool],
) -> None:
    text = "local-sgd:every=3,average_moments=false"
    found = call(pools[2], "compiled_again", of="recompiled_cases", text=text)
    for seen in found:
        for end, simulated in zip(seen["ends"], found[0]["simulated"], strict=True):
            same(end, simulated)
        assert seen["ends"] == found[0]["ends"]


def test_the_first_steps_may_reduce_gradients(pools: dict[int, WorkerPool]) -> None:
    found = call(pools[2], "post_local_sgd", after=5, every=3, optimizer="adam")
    for seen in found:
        same(seen["weights"], found[0]["simulated"])


def test_outer_steps_that_take_the_mean_are_local_sgd(pools: dict[int, WorkerPool]) -> None:
    """The same holds where a lossless codec carries the deltas."""
    names = ["local-sgd:every=4,average_moments=false", "plain", "top"]
    for local, outer, sent in call(pools[2], "same_ends", names=names, optimizer="adam"):
        same(outer, local)
        same(sent, local)


@pytest.mark.parametrize(
    ("workers", "options", "dtype"),
    [
        (3, {"every": 6, "fragments": 2, "delay": 2}, "float64"),
        pytest.param(2, {"every": 6, "fragments": 2, "delay": 2, "keep": 0.25}, "float32", marks=release),
        pytest.param(2, {"every": 3}, "float32", marks=release),
    ],
    ids=["fragments", "mixed", "whole"],
)
def test_outer_steps_are_those_of_the_simulation(
    pools: dict[int, WorkerPool], workers: int, options: dict[str, Any], dtype: str
) -> None:
    found = call(pools[workers], "outer_steps", options=options, dtype=dtype)
    for seen in found:  # roundings that normalization enlarges
        same(seen["weights"], found[0]["simulated"], within=4e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize("wire", ["int4", "int4 over tensorflow"])
def test_few_bits_keep_workers_alike(pools: dict[int, WorkerPool], wire: str) -> None:
    one, other = call(pools[2], "trained", synchronization=wire, optimizer="adam", epochs=4, validates=True)
    assert one == other
    losses = one["history"]["val_loss"]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    ("workers", "text", "dtype"),
    [
        (2, "elastic:every=3,alpha=0.3", "float32"),
        (3, "gossip:topology=ring,push_sum=true", "float64"),
        pytest.param(3, "gossip:every=2,topology=exponential", "float32", marks=release),
    ],
)
def test_mixtures_are_those_of_the_simulation(
    pools: dict[int, WorkerPool], workers: int, text: str, dtype: str
) -> None:
    found = call(pools[workers], "mixed", text=text, dtype=dtype)
    for seen in found:
        same(seen["weights"], found[0]["simulated"], within=1e-6 if dtype == "float32" else 1e-12)


@pytest.mark.parametrize(
    ("text", "after", "options"),
    [
        ("local-sgd:every=4", [2, 5], {}),
        ("diloco:every=4,fragments=2,delay=1,wire=int4", [1, 3], {"steps_per_execution": 2, "optimizer": "momentum"}),
    ],
    ids=["averages", "fragments"],
)
def test_training_resumes_bit_for_bit_between_meetings(
    pools: dict[int, WorkerPool], tmp_path: Path, text: str, after: list[int], options: dict[str, Any]
) -> None:
    """In the middle of a period, where an epoch begins, and while a fragment is under way."""
    for never, again in call(pools[2], "resumed", text=text, folder=str(tmp_path), after=after, **options):
        assert again == never


def test_the_interval_is_chosen_once_and_alike(pools: dict[int, WorkerPool], tmp_path: Path) -> None:
    """After twelve local steps without a meeting; a backup remembers it."""
    found = call(pools[2], "chosen_interval", folder=str(tmp_path))
    for seen in found:
        assert seen["before"] == seen["after"] == found[0]["after"]
        assert seen["after"][0] >= 2
        same(seen["weights"], found[0]["simulated"])


def test_another_number_of_workers_begins_with_the_mean(pools: dict[int, WorkerPool], tmp_path: Path) -> None:
    text = "local-sgd:every=4"
    before = call(pools[3], "backed_up", text=text, folder=str(tmp_path), after=6)
    mean = np.mean([seen["left"] for seen in before], axis=0)
    assert before[0]["left"] != before[1]["left"]
    after = call(pools[2], "backed_up", text=text, folder=str(tmp_path), after=None)
    for seen in after:
        same(seen["began"], mean, within=1e-7)
        assert seen["ended"] == after[0]["ended"]


def test_the_recipe_trains_and_shows_the_mean(forking: Forks, tmp_path: Path) -> None:
    recipe = str(Path(__file__).parents[2] / "strategies" / "far_apart" / "train.py")
    options = ["--epochs", "3", "--output", str(tmp_path)]
    with forking.start("tfdist", "run", "--strategy", "multi-worker", "-n", "2", recipe, *options) as process:
        output = process.communicate(DEADLINE_SECONDS)[0].decode()
    assert process.returncode == 0, process.written[-4000:]
    reached = re.findall(r"test accuracy +([\d.]+)", output)
    assert len(set(reached)) == 1, "all workers show one model"
    assert float(reached[0]) > 0.5
    assert (tmp_path / "model.keras").is_file()
    losses = (tmp_path / "losses.csv").read_text().splitlines()
    assert len(losses) == 4


def test_replicas_of_a_worker_reduce_in_every_step_of_a_ring(forking: Forks) -> None:
    """Each worker is one place of data parallelism, as the simulation's models are."""
    with start(forking, "ring", 2, replicas=2, kind=RestingPool) as pool:
        found = call(pool, "local_sgd", every=4, optimizer="adam", normalizes=False)
        assert sum(call(pool, "part_of_a_mean")) == 1.0
    for seen in found:
        same(seen["weights"], found[0]["simulated"])
        assert seen["history"] == found[0]["history"]


def test_workers_of_a_group_reduce_in_every_step(forking: Forks) -> None:
    """Two groups of two, which the simulation has as two models; also while a fragment travels between all."""
    with start(forking, "multi-worker", 4) as pool:
        found = call(pool, "local_sgd", every=4, optimizer="adam", normalizes=True, inside=2)
        outer = call(pool, "sent_by_heads", synchronization="diloco:every=6,fragments=2,delay=2,inside=2")
    for seen in found:
        same(seen["weights"], found[0]["simulated"])
        assert seen["history"] == found[0]["history"]
    weights = 4 * (4 * 5 + 5 + 5 + 1)
    for rank, seen in enumerate(outer):
        told = seen.pop("bytes")
        assert told["heads"] == (0 if rank % 2 else told["near"]), "one worker of a group sends for all"
        assert told["near"] >= weights
        assert told["all"] == 0
        assert seen == outer[0]


def test_callbacks_see_the_mean_and_decide_at_meetings(pools: dict[int, WorkerPool]) -> None:
    one, other = call(pools[2], "manners")
    assert one["shown"] == other["shown"]
    assert len(one["shown"]) == 6, "a wish to stop after the fifth batch waits for the meeting after the sixth"
    for step in (3, 6):  # after a meeting
        assert one["own"][step - 1] == other["own"][step - 1] == one["shown"][step - 1]
    for step in (4, 5):  # the mean that is known
        assert one["shown"][step - 1] == one["shown"][2]
        assert one["own"][step - 1] != other["own"][step - 1]
    assert (one["ended"], one["evaluated"]) == (other["ended"], other["evaluated"])


def test_weights_that_a_callback_sets_hold(pools: dict[int, WorkerPool]) -> None:
    for _, zero, trained, _ in call(pools[2], "weights_of_a_callback"):
        assert not any(zero)
        assert not any(trained)


def test_workers_that_would_meet_at_other_steps_are_named_at_once(pools: dict[int, WorkerPool]) -> None:
    steps = len(range(0, 82, 12))
    for rank, seen in enumerate(call(pools[2], "other_meetings")):
        texts = [
            [f"local-sgd:every={every},average_moments=True,inside=1 after {begun} steps" for every, begun in workers]
            for workers in (((31, 0), (32, 0)), ((33, steps + 2), (33, steps + 1)))
        ]
        for (name, received, workers, message), named in zip(seen, texts, strict=True):
            assert (name, received, workers) == ("synchronization", named[rank], [0, 1])
            assert all(f"worker {worker}: {text}" in message for worker, text in enumerate(named))


def test_what_cannot_meet_seldom_is_refused(pools: dict[int, WorkerPool]) -> None:
    for seen in call(pools[2], "refusals"):
        assert seen == {
            "own loop": ["UnsupportedError", "synchronization"],
            "own eager loop": ["UnsupportedError", "synchronization"],
            "eager": ["UnsupportedError", "run_eagerly"],
            "on batch": ["UnsupportedError", "synchronization"],
            "island": ["ConfigError", "inside"],
            "sharded": ["ConfigError", "synchronization"],
            "mirrored": ["ConfigError", "synchronization"],
            "codec": ["ConfigError", "wire"],
        }
