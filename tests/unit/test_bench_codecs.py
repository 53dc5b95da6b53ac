"""The benchmark of gradient compression without workers: names, figures, and what is refused."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tfdist.bench.codecs.codec_bench import CodecBench, CodecReport, Row
from tfdist.bench.codecs.codec_choice import DEFAULT, compared, load, parsed
from tfdist.bench.codecs.codec_race import CodecRace, Curve, RaceReport
from tfdist.bench.workers.slow_network import EmulatedLink
from tfdist.cli.main import main
from tfdist.errors import ConfigError, MissingDependencyError
from tfdist.planner import machine


def about() -> dict[str, str]:
    return {**machine.describe(), "load average at the end": "0.1"}


def setup(**changes: Any) -> CodecBench:
    given = {"codecs": ["powersgd"], "model": "small", "workers": 2}
    numbers = {"global_batch_size": 32, "warm_up_steps": 1, "steps": 5, "rounds": 3}
    return CodecBench(**{**given, **numbers, **changes})


def report() -> CodecReport:
    rows = [
        Row(name="noop", seconds=[0.1, 0.1, 0.1], sent_bytes=[10, 10, 10], payload_bytes=[9, 9, 9]),
        Row(
            name="horovod",
            seconds=[0.8, 1.6, 0.8],
            sent_bytes=[1030, 1020, 1010],
            payload_bytes=[1000] * 3,
            wire_bytes=1000,
        ),
        Row(
            name="none",
            seconds=[0.4, 0.8, 0.4],
            sent_bytes=[1010] * 3,
            payload_bytes=[1000] * 3,
            wire_bytes=1000,
            error=0.0,
        ),
        Row(
            name="powersgd",
            seconds=[0.2, 0.2, 0.2],
            sent_bytes=[115, 125, 135],
            payload_bytes=[110, 120, 130],
            wire_bytes=100,
            computing=[(0.001, 0.002), (0.003, 0.004), (0.005, 0.006)],
            error=0.5,
        ),
    ]
    return CodecReport(setup=setup(link=EmulatedLink(rate="100mbit")), rows=rows, left_out={}, machine=about())


def race(**changes: Any) -> CodecRace:
    given = {"codecs": ["powersgd"], "data": Path("digits"), "workers": 2, "global_batch_size": 64, "steps": 10}
    return CodecRace(**{**given, "target": 0.9, "rounds": 1, **changes})


def raced() -> RaceReport:
    curves = {
        "horovod": [Curve(seconds=[10.0, 20.0], accuracy=[0.5, 0.92])],
        "none": [Curve(seconds=[9.0, 18.0], accuracy=[0.5, 0.92])],
        "powersgd": [Curve(seconds=[1.0, 2.0], accuracy=[0.4, 0.91])],
        "topk": [Curve(seconds=[1.0, 2.0], accuracy=[0.4, 0.8])],
    }
    return RaceReport(setup=race(), curves=curves, examples=640, left_out={"horovod": "gone"}, machine=about())


def test_a_codec_has_options_behind_a_colon() -> None:
    assert parsed("dgc:density=0.001,factor_masking=false") == ("dgc", {"density": 0.001, "factor_masking": False})
    assert all(parsed(name) == (name, {}) for name in DEFAULT)


@pytest.mark.parametrize("text", ["powersgd:rank", "powersgd:rank=", "powersgd:4"])
def test_an_option_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="NAME=VALUE"):
        parsed(text)


def test_a_module_that_is_not_there_is_named() -> None:
    with pytest.raises(MissingDependencyError, match="'no_such_codecs' cannot be imported"):
        load(["no_such_codecs"])


def test_what_others_are_compared_with_is_always_measured_and_once() -> None:
    assert list(compared(["topk", "none", "topk"], bound=True, horovod=True).lanes) == [
        "noop",
        "horovod",
        "none",
        "topk",
    ]
    without = compared(["topk"], bound=False, horovod=False)
    assert list(without.lanes) == ["none", "topk"]
    assert "tfdist build horovod" in without.left_out["horovod"]


def test_what_was_chosen_is_compared_with_the_best_fixed_codec() -> None:
    auto = Row(name="auto:within=unbiased", seconds=[0.21, 0.25, 0.19])
    found = dataclasses.replace(report(), rows=[*report().rows, auto])
    best, times = found.regrets()["auto:within=unbiased"]
    assert best == "powersgd"  # and neither the bound nor the peer
    assert times.median == pytest.approx(1.05)
    assert json.loads(found.to_json())["regrets"]["auto:within=unbiased"]["best"] == "powersgd"
    assert report().regrets() == {}


def test_time_to_accuracy_is_that_of_the_first_check_that_reaches_it() -> None:
    found = raced()
    assert found.seconds_to_target("powersgd").median == 2.0
    assert found.epochs_to_target("powersgd").median == pytest.approx(10 * 64 / 640)
    assert found.speed("powersgd", "horovod").median == pytest.approx(10.0)
    assert found.seconds_to_target("topk") is found.speed("topk", "none") is None
    read = json.loads(found.to_json())
    assert read["results"][-1]["seconds_to_target"] is None
    assert read["results"][2]["speed"]["none"]["median"] == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("make", "changes", "says"),
    [
        (setup, {"global_batch_size": 33}, "33 examples for 2 workers"),
        (setup, {"workers": 1}, r"workers \(--workers\) is 1"),
        (setup, {"codecs": []}, "codecs is empty"),
        (race, {"global_batch_size": 33}, "33 examples for 2 workers"),
        (race, {"steps": 12}, "steps_per_check, 5"),
        (race, {"target": 1.5}, "target is 1.5"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        make(**changes)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--delay", "1"], "needs a link"),
        (["--plot", "codecs.png"], "needs --train"),
        (["--train", "--model", "small"], "omit --model"),
        (["--target", "0"], "--target"),
        (["--workers", "1"], "--workers"),
    ],
)
def test_a_request_that_makes_no_sense_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main, ["bench", "codecs", *arguments])
    assert done.exit_code == 2
    assert says in done.output
