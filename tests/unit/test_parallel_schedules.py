"""Schedules of pipelines: sound for all numbers, bubbles as the formulas say, mistakes that are seen."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.refusals import refused
from tfdist.cli.main import main
from tfdist.errors import ConfigError
from tfdist.planner import schedules
from tfdist.planner.schedules import Schedule, Work
from tfdist.planner.schedules.schedule_timeline import most_live, require_sound


def every(name: str) -> Iterator[Schedule]:
    for stages, microbatches in itertools.product(range(1, 9), range(1, 33)):
        if name != "interleaved":
            yield schedules.named(name, stages=stages, microbatches=microbatches)
        elif microbatches % stages == 0:
            for chunks in range(1, 5):
                yield schedules.named(name, stages=stages, microbatches=microbatches, chunks=chunks)


@pytest.mark.parametrize("name", schedules.NAMES)
def test_every_schedule_is_sound_and_its_bubble_is_the_formulas(name: str) -> None:
    for one in every(name):
        schedules.require_sound(one)
        assert [most_live(order) for order in one.orders] == list(one.live), one
        ahead = one.stages - 1
        expected = ahead / (one.chunks * one.microbatches + ahead)
        assert schedules.bubble(one) == pytest.approx(expected, abs=1e-9), one


def test_what_is_live() -> None:
    assert schedules.named("gpipe", stages=3, microbatches=8).live == (8, 8, 8)
    assert schedules.named("1f1b", stages=3, microbatches=8).live == (3, 2, 1)
    assert schedules.named("1f1b", stages=4, microbatches=2).live == (2, 2, 2, 1)
    assert schedules.named("eager-1f1b", stages=3, microbatches=8).live == (5, 3, 1)
    assert schedules.named("eager-1f1b", stages=4, microbatches=2).live == (2, 2, 2, 1)
    assert schedules.named("interleaved", stages=2, microbatches=4, chunks=2).live == (5, 3)
    assert schedules.named("gpipe", stages=2, microbatches=3, chunks=2).live == (6, 6)


def test_one_chunk_is_interleaved_with_none() -> None:
    one = schedules.named("interleaved", stages=3, microbatches=6)
    assert replace(one, name="1f1b") == schedules.named("1f1b", stages=3, microbatches=6)


def test_stages_of_unlike_times_wait_for_the_slowest() -> None:
    one = schedules.named("1f1b", stages=2, microbatches=4)
    found = schedules.timeline(one, forward=[1, 3], backward=[2, 6])
    assert found.length == 1 + 4 * (3 + 6) + 2
    with refused(ConfigError, name="forward", received=3, mentions=["2 parts"]):
        schedules.timeline(one, forward=[1, 2, 3])


def test_weights_of_pipedream_are_those_of_the_forward_pass() -> None:
    one = schedules.named("pipedream", stages=3, microbatches=6)
    for stage in range(3):
        versions = one.versions(stage)
        for m in range(6):
            assert versions[Work("forward", m)] == versions[Work("backward", m)] == max(0, m - (2 - stage))
    predicted = schedules.named("spectrain", stages=3, microbatches=6).versions(0)
    assert [predicted[Work("forward", m)] for m in range(6)] == [0, 0, 0, 1, 2, 3]
    assert [predicted[Work("backward", m)] for m in range(6)] == [0, 1, 2, 3, 4, 5]
    flushed = schedules.named("1f1b", stages=3, microbatches=6).versions(0)
    assert set(flushed.values()) == {0}


def of(*orders: str, live: tuple[int, ...] | None = None, chunks: int = 1) -> Schedule:
    """A schedule from texts such as "F0 F1 B0 B1"."""
    kinds = {"F": "forward", "B": "backward"}

    def work(text: str) -> Work:
        microbatch, _, chunk = text[1:].partition(".")
        return Work(kinds[text[0]], int(microbatch), int(chunk or 0))  # type: ignore[arg-type]

    made = tuple(tuple(map(work, order.split())) for order in orders)
    count = 1 + max(one.microbatch for order in made for one in order)
    return Schedule(
        name="mine",
        stages=len(orders),
        microbatches=count,
        chunks=chunks,
        orders=made,
        live=(count * chunks,) * len(orders) if live is None else live,
    )


@pytest.mark.parametrize(
    ("wrong", "facts"),
    [
        (of("F0 B0 F1 B1", "F0 F1 B0 B1", live=(1, 1)), ["stage 1 ", "2 activations", "1 are promised"]),
        (of("F0 F1 B0 B1", "F0 F1 B0 B0"), ["stage 1 ", "B0 2 times"]),
        (of("F0 F1 B0 B1", "F0 F1 B0"), ["stage 1 ", "B1 0 times"]),
        (of("F0 B0 F1 B1", "B0 F0 F1 B1"), ["stage 1 ", "B0 before its forward"]),
        (of("F0 F1 B0 B1", "F0 F1 B0 B1 B0.1"), ["stage 1 ", "B0.1", "no place"]),
        (
            of("F0 B0 F1 B1", "F1 B1 F0 B0"),
            ["never ends", "stage 0 waits before B0", "stage 1 waits before F1", "F1 of stage 0"],
        ),
        (of("F0 F1 B1 B0", "F0 B0 F1 B1"), ["stage 1 sends", "of B0", "stage 0 takes", "of B1"]),
        (replace(of("F0 B0"), stages=2), ["1 orders", "2 stages"]),
    ],
)
def test_a_wrong_schedule_is_refused(wrong: Schedule, facts: list[str]) -> None:
    with refused(ConfigError, name="mine", mentions=facts):
        require_sound(wrong)


def test_a_schedule_of_ones_own_is_a_function() -> None:
    assert require_sound(of("F0 F1 B0 B1", "F0 B0 F1 B1", live=(2, 1))).orders[1][1] == Work("backward", 0)


@pytest.mark.parametrize(
    ("given", "wrong", "received", "fact"),
    [
        (("zero-bubble", 2, 4, 1), "schedule", "zero-bubble", "1f1b"),
        (("gpipe", 0, 4, 1), "stages", 0, "at least 1"),
        (("gpipe", 2, 0, 1), "microbatches", 0, "at least 1"),
        (("1f1b", 2, 4, 0), "chunks", 0, "at least 1"),
        (("1f1b", 2, 4, 2), "chunks", 2, "schedule is '1f1b'"),
        (("interleaved", 2, 3, 2), "microbatches", 3, "stages is 2"),
    ],
)
def test_numbers_that_make_no_schedule(
    given: tuple[str, int, int, int], wrong: str, received: object, fact: str
) -> None:
    name, stages, microbatches, chunks = given
    with refused(ConfigError, name=wrong, received=received, mentions=[fact]):
        schedules.named(name, stages=stages, microbatches=microbatches, chunks=chunks)


def test_the_command_prints_and_draws(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["parallel", "schedule", "1f1b", "--stages", "2", "--microbatches", "3"])
    assert done.output.splitlines() == [
        "stage 0  F0  F1  .   .   B0  B0  F2  B1  B1  .   B2  B2",
        "stage 1  .   F0  B0  B0  F1  B1  B1  F2  B2  B2  .   .",
        "bubble 25.0 %; live activations 2, 1",
    ]
    longer = CliRunner().invoke(main, ["parallel", "schedule", "1f1b", "--stages", "3", "--backward", "2.5"])
    whole = {f"{kind}{number}" for kind in "FB" for number in range(8)}
    assert all(whole <= set(line.split()) for line in longer.output.splitlines()[:3])
    delayed = CliRunner().invoke(main, ["parallel", "schedule", "pipedream", "--stages", "3"])
    assert "2, 1, 0 updates older" in delayed.output
    picture = tmp_path / "zeit achse.png"
    drawn = CliRunner().invoke(main, ["parallel", "schedule", "interleaved", "--chunks", "2", "--plot", str(picture)])
    assert drawn.exit_code == 0, drawn.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    wrong = CliRunner().invoke(main, ["parallel", "schedule", "interleaved", "--microbatches", "5", "--chunks", "2"])
    assert wrong.exit_code == 2
    assert "multiple of 4" in wrong.output
