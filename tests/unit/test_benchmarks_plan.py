"""What plans predict of steps, which one is chosen and what that costs; steps of a pipeline beside the ideal."""

import json

import pytest

from benchmarks.parallel import pipeline_race as pipeline
from benchmarks.parallel.plan_accuracy import PlanAccuracyBench, PlanAccuracyReport, Row, predicted
from tfdist.planner.layer_profile import LayerProfile, Profile, beside_each_other
from tfdist.planner.planner_link import Link

LINE = Link(latency_seconds=0.0, bytes_per_second=1e9)


def profile(*seconds: float) -> Profile:
    layers = tuple(
        LayerProfile(name=f"layer_{number}", forward_seconds=(one,), backward_seconds=(2 * one,))
        for number, one in enumerate(seconds)
    )
    return Profile(model="m", batch=4, batch_sizes=(4,), layers=layers, whole_seconds=(3 * sum(seconds),))


def test_a_step_is_predicted_for_each_plan() -> None:
    found = predicted(profile(1.0, 1.0, 1.0, 1.0), LINE, 4)
    assert found["one device"] == (12.0, None)
    assert found["data 2"] == (6.0, None)
    assert found["pipeline 2"] == (7.5, ("layer_2",))  # 6 s, and the bubble of 1 / 5
    two = [profile(2.0, 2.0, 2.0, 2.0), profile(1.5, 1.5, 1.5, 1.5)]
    slower = predicted(beside_each_other(two, alone=profile(1.0, 1.0, 1.0, 1.0)), LINE, 4, begin=("layer_1",))
    assert slower["one device"] == (12.0, None)
    assert slower["data 2"] == (12.0, None)
    # three micro-batches of 4.5 s in the longer stage; the first, of 3 s, goes through both while nobody else computes
    assert slower["pipeline 2"] == (16.5, ("layer_1",))


def test_what_a_choice_costs_is_the_chosen_step_over_the_best() -> None:
    rows = {
        "one device": Row(predicted=[2.0] * 3, measured=[2.0, 2.0, 2.0], stages=None),
        "data 2": Row(predicted=[1.0] * 3, measured=[1.5, 1.5, 1.5], stages=None),
        "pipeline 2": Row(predicted=[1.1] * 3, measured=[1.2, 1.2, 1.2], stages=("a",)),
    }
    report = PlanAccuracyReport(setup=PlanAccuracyBench(models=["dense"]), link=LINE, rows={"dense": rows}, machine={})
    assert report.chosen("dense") == "data 2"
    assert report.regret("dense").median == pytest.approx(1.25)
    assert json.loads(report.to_json())["predicted_over_measured"]["dense"]["data 2"]["median"] == pytest.approx(2 / 3)


def test_a_schedule_has_a_part_of_the_ideal() -> None:
    seconds = {
        pipeline.ALONE: [1.8] * 3,
        pipeline.BESIDE: [2.7] * 3,
        pipeline.IN_PARTS: [3.6] * 3,
        "1f1b": [1.0] * 3,
        "eager-1f1b": [1.0] * 3,
        "gpipe": [2.0] * 3,
    }
    report = pipeline.PipelineReport(
        setup=pipeline.PipelineBench(batch_size=36, microbatches=9), seconds=seconds, grown_bytes={}, machine={}
    )
    assert report.bubble("1f1b") == pytest.approx(0.1)
    assert report.of_ideal("1f1b").median == pytest.approx(1.0)
    assert report.of_ideal("gpipe").median == pytest.approx(0.5)
    assert report.of_microbatches("gpipe").median == pytest.approx(1.0)
    assert report.of_machine("gpipe").median == pytest.approx(0.75)
