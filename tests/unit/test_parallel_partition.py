"""The partition of a model: the search beside brute force, predictions beside closed forms, memory, monotony."""

import dataclasses
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.planner import schedules, stage_search
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.division_plans import plans
from tfdist.planner.layer_profile import LayerProfile, Profile
from tfdist.planner.planner_link import Link
from tfdist.planner.stage_cost import SCHEDULES, Setting, Stage
from tfdist.planner.stage_search import best_stages, cost
from tfdist.planner.step_time import predict

FAST = Link(latency_seconds=0.0, bytes_per_second=1e18)
KB = st.integers(0, 8).map(lambda size: size * 1000)


@st.composite
def profiles(draw: st.DrawFn, most: int = 12) -> Profile:
    """Layers with skip connections, some of which no stage may begin with."""
    count = draw(st.integers(1, most))
    layers = []
    for place in range(count):
        inputs = draw(st.sets(st.integers(0, place - 1), min_size=1, max_size=2)) if place else set()
        layers.append(
            LayerProfile(
                name=f"layer{place}",
                may_begin_stage=draw(st.integers(0, 3)) > 0,
                inputs=tuple(sorted(inputs)),
                parameter_bytes=draw(KB),
                state_bytes=draw(KB),
                output_bytes=float(draw(KB)),
                gradient_bytes=float(draw(KB)),
                kept_bytes=float(draw(KB)),
                divides=draw(st.sampled_from([0, 3, 4])),
                joins=draw(st.booleans()),
                forward_seconds=(draw(st.integers(0, 9)) / 8,),
                backward_seconds=(draw(st.integers(0, 9)) / 8,),
            )
        )
    whole = sum(one.forward_seconds[0] + one.backward_seconds[0] for one in layers)
    found = Profile(
        model="m",
        batch=16,
        batch_sizes=(16,),
        layers=tuple(layers),
        whole_seconds=(whole,),
        update_seconds=draw(st.integers(0, 3)) / 4,
        adding_seconds=draw(st.integers(0, 3)) / 4,
        call_seconds=0.01,
        slot_bytes=draw(KB),
    )
    alone = dataclasses.replace(found, whole_seconds=(draw(st.sampled_from([0.5, 1.25])) * whole,))
    fixed = draw(st.sampled_from([0.0, 0.5]))
    return dataclasses.replace(found, processes=2, alone=alone, fixed_seconds=fixed) if draw(st.booleans()) else found


@st.composite
def cases(draw: st.DrawFn, most: int = 12, most_kinds: int = 1) -> Setting:
    kinds = draw(st.integers(1, most_kinds))
    devices = [
        DeviceKind(
            name=f"kind{number}",
            count=draw(st.integers(1, 4 if kinds == 1 else 2)),
            speed=draw(st.sampled_from([0.5, 1.0, 3.0])),
            memory_bytes=draw(st.sampled_from([8e3, 3e4, 1e5, math.inf])),
            price=draw(st.sampled_from([1.0, 2.5])),
        )
        for number in range(kinds)
    ]
    link = Link(
        latency_seconds=draw(st.sampled_from([0.0, 0.01])),
        bytes_per_second=draw(st.sampled_from([1e3, 1e5, 1e12])),
        is_local=draw(st.booleans()),
    )
    return Setting(
        profile=draw(profiles(most)),
        link=link,
        kinds=tuple(devices),
        schedule=draw(st.sampled_from(SCHEDULES)),
        microbatches=draw(st.sampled_from([1, 2, 4, 8])),
        replicas=draw(st.sampled_from([None, 1, 2])),
        parts=draw(st.sampled_from([1, 2])),
        saves_memory=draw(st.booleans()),
    )


def fits(setting: Setting, stages: tuple[Stage, ...]) -> bool:
    needed = predict(setting, stages).memory
    return all(m.total <= setting.kinds[s.kind].memory_bytes for m, s in zip(needed, stages, strict=True))


def uses(setting: Setting, stages: tuple[Stage, ...]) -> bool:
    used = [sum(s.devices for s in stages if s.kind == kind) for kind in range(len(setting.kinds))]
    return used == [one.count for one in setting.kinds]


def every(setting: Setting) -> Iterator[tuple[Stage, ...]]:
    """All ways to make stages, whether they fit or not."""
    layers = len(setting.profile.layers)
    inner = setting.begins()[1:]
    devices = [
        (kind, count)
        for kind, one in enumerate(setting.kinds)
        for count in range(1, one.count + 1)
        if setting.replicas in (None, count)
    ]
    for number in range(len(inner) + 1):
        for cuts in itertools.combinations(inner, number):
            ends = [*cuts, layers]
            for chosen in itertools.product(devices, repeat=number + 1):
                totals = [0] * len(setting.kinds)
                for kind, count in chosen:
                    totals[kind] += count
                if all(total <= one.count for total, one in zip(totals, setting.kinds, strict=True)):
                    yield tuple(
                        Stage(begin=begin, end=end, devices=count, kind=kind)
                        for begin, end, (kind, count) in zip([0, *cuts], ends, chosen, strict=True)
                    )


def equals_brute_force(setting: Setting, objective: str, uses_all: bool) -> None:
    found = best_stages(setting, objective=objective, uses_all=uses_all)
    possible = [s for s in every(setting) if fits(setting, s) and (not uses_all or uses(setting, s))]
    if found is None:
        assert not possible
        return
    assert fits(setting, found)
    assert found[0].begin == 0
    assert found[-1].end == len(setting.profile.layers)
    best = min(cost(setting, stages, objective, waits_for_returns=False) for stages in possible)
    assert cost(setting, found, objective, waits_for_returns=False) == pytest.approx(best, rel=1e-9)
    assert best_stages(setting, objective=objective, uses_all=uses_all) == found


@settings(max_examples=60, deadline=None)
@given(setting=cases(most=12), uses_all=st.booleans())
def test_pipelines_of_equal_stages_equal_brute_force(setting: Setting, uses_all: bool) -> None:
    equals_brute_force(dataclasses.replace(setting, replicas=setting.replicas or 1), "time", uses_all)


@settings(max_examples=60, deadline=None)
@given(setting=cases(most=7), uses_all=st.booleans())
def test_replicas_of_each_stage_equal_brute_force(setting: Setting, uses_all: bool) -> None:
    equals_brute_force(dataclasses.replace(setting, replicas=None), "time", uses_all)


@settings(max_examples=60, deadline=None)
@given(setting=cases(most=5, most_kinds=2), objective=st.sampled_from(stage_search.OBJECTIVES), uses_all=st.booleans())
def test_unlike_devices_equal_brute_force(setting: Setting, objective: str, uses_all: bool) -> None:
    equals_brute_force(dataclasses.replace(setting, replicas=None), objective, uses_all)


@settings(max_examples=60, deadline=None)
@given(setting=cases(most=10), factor=st.sampled_from([1.5, 10.0]))
def test_more_memory_or_bandwidth_is_never_slower(setting: Setting, factor: float) -> None:
    before = best_stages(setting)
    more = tuple(dataclasses.replace(one, memory_bytes=one.memory_bytes * factor) for one in setting.kinds)
    line = dataclasses.replace(setting.link, bytes_per_second=setting.link.bytes_per_second * factor)
    for better in (dataclasses.replace(setting, kinds=more), dataclasses.replace(setting, link=line)):
        after = best_stages(better)
        if before is not None:
            assert after is not None
            assert cost(better, after) <= cost(setting, before) * (1 + 1e-9)


@settings(max_examples=100, deadline=None)
@given(setting=cases(most=6, most_kinds=2), data=st.data())
def test_the_terms_sum_up_to_the_step(setting: Setting, data: st.DataObject) -> None:
    ways = list(every(setting))
    if not ways:
        return
    found = predict(setting, data.draw(st.sampled_from(ways)))
    terms = (found.compute, found.bubble, found.communication, found.reduction, found.update, found.fixed)
    assert min(terms) >= 0
    assert sum(terms) == pytest.approx(found.seconds, rel=1e-9, abs=1e-12)


def alike(count: int, **options: Any) -> Profile:
    """Layers that take 1 s forward and 2 s backward for a batch of 32."""
    layer = {"forward_seconds": (1.0,), "backward_seconds": (2.0,), **options}
    layers = [LayerProfile(name=f"l{n}", inputs=(n - 1,) if n else (), **layer) for n in range(count)]
    return Profile(model="m", batch=32, batch_sizes=(32,), layers=tuple(layers), whole_seconds=(3.0 * count,))


def test_a_slower_pipeline_is_chosen_whose_fixed_time_is_shorter() -> None:
    alone = alike(2)
    profile = dataclasses.replace(alone, processes=2, alone=alone, fixed_seconds=1.0)
    link = Link(latency_seconds=0.01, bytes_per_second=1e9)
    found = best_stages(Setting(profile=profile, link=link, kinds=(DeviceKind(count=2),), microbatches=2))
    assert found == (Stage(begin=0, end=1), Stage(begin=1, end=2))


@pytest.mark.parametrize(("objective", "kind", "value"), [("time", 1, 2.0), ("price", 0, 6 / 3600 * 1.5)])
def test_a_slow_step_may_be_cheap(objective: str, kind: int, value: float) -> None:
    kinds = (DeviceKind(count=1, speed=1.0, price=1.5), DeviceKind(count=1, speed=3.0, price=7.5))
    setting = Setting(profile=alike(2), link=FAST, kinds=kinds)
    found = best_stages(setting, objective=objective, uses_all=False)
    assert found == (Stage(begin=0, end=2, kind=kind),)
    assert cost(setting, found, objective) == pytest.approx(value)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (2, 8), (4, 4), (8, 32)])
def test_the_bubble_of_stages_that_are_alike(schedule: str, stages: int, microbatches: int) -> None:
    setting = Setting(
        profile=alike(stages),
        link=FAST,
        kinds=(DeviceKind(count=stages),),
        schedule=schedule,
        microbatches=microbatches,
        replicas=1,
    )
    found = best_stages(setting)
    assert found is not None
    step = predict(setting, found)
    assert step.seconds == pytest.approx((microbatches + stages - 1) * 3.0 / microbatches)
    assert step.bubble_part == pytest.approx((stages - 1) / (microbatches + stages - 1))


def test_each_micro_batch_after_the_first_adds_its_gradients() -> None:
    layers = [
        LayerProfile(name=name, parameter_bytes=size, forward_seconds=(4.0,), backward_seconds=(8.0,))
        for name, size in (("a", 1000), ("b", 3000))
    ]
    profile = Profile(
        model="m", batch=4, batch_sizes=(4,), layers=tuple(layers), whole_seconds=(24.0,), adding_seconds=2.0
    )
    stages = [Stage(begin=0, end=1), Stage(begin=1, end=2)]
    kind = DeviceKind(count=2)

    def step(schedule: str, microbatches: int) -> float:
        given = Setting(
            profile=profile, link=FAST, kinds=(kind,), replicas=1, schedule=schedule, microbatches=microbatches
        )
        return predict(given, stages).seconds

    # 3 s of a micro-batch in a stage; 1.5 s for the gradients of "b", three times
    assert (step("1f1b", 4), step("gpipe", 4)) == (15.0 + 4.5, 15.0 + 4.5)
    assert step("1f1b", 1) == 24.0
    assert step("pipedream", 4) == 12.0  # updates instead


def test_pipedream_has_no_bubble_and_keeps_versions_of_weights() -> None:
    profile = alike(4, parameter_bytes=100)
    setting = Setting(
        profile=profile, link=FAST, kinds=(DeviceKind(count=4),), schedule="pipedream", microbatches=8, replicas=1
    )
    found = best_stages(setting)
    assert found is not None
    step = predict(setting, found)
    assert step.seconds == pytest.approx(3.0)
    assert [one.weights for one in step.memory] == [400, 300, 200, 100]


def test_live_activations_are_those_of_the_schedule() -> None:
    profile = alike(4, kept_bytes=10.0)
    stages = [Stage(begin=n, end=n + 1) for n in range(4)]
    options: dict[str, Any] = {"profile": profile, "link": FAST, "kinds": (DeviceKind(count=4),), "replicas": 1}
    for schedule, microbatches in itertools.product(SCHEDULES, (2, 4, 8)):
        setting = Setting(schedule=schedule, microbatches=microbatches, **options)
        live = schedules.named(schedule, stages=4, microbatches=microbatches).live
        if schedule == "pipedream":  # there is always a next micro-batch
            live = (4, 3, 2, 1)
        size = 32 / microbatches
        assert [one.activations for one in predict(setting, stages).memory] == [10.0 * size * count for count in live]


def test_a_cut_counts_every_tensor_that_crosses_it() -> None:
    layers = [
        LayerProfile(name="a", output_bytes=1.0, gradient_bytes=1.0, forward_seconds=(1.0,), backward_seconds=(1.0,)),
        LayerProfile(name="b", inputs=(0,), output_bytes=10.0, forward_seconds=(1.0,), backward_seconds=(1.0,)),
        LayerProfile(name="c", inputs=(1,), output_bytes=100.0, forward_seconds=(1.0,), backward_seconds=(1.0,)),
        LayerProfile(name="d", inputs=(0, 2), forward_seconds=(1.0,), backward_seconds=(1.0,)),
    ]
    profile = Profile(model="m", batch=4, batch_sizes=(4,), layers=tuple(layers), whole_seconds=(8.0,))
    setting = Setting(profile=profile, link=FAST, kinds=(DeviceKind(count=2),))
    assert setting.crossing == [(0.0, 0.0), (1.0, 1.0), (11.0, 1.0), (101.0, 1.0)]


def test_data_parallelism_on_a_network_hides_what_the_backward_pass_hides() -> None:
    profile = alike(4, parameter_bytes=1000)
    options: dict[str, Any] = {"profile": profile, "kinds": (DeviceKind(count=2),), "replicas": 2}
    (whole,) = [[Stage(begin=0, end=4, devices=2)]]
    slow = predict(Setting(link=Link(latency_seconds=0.0, bytes_per_second=500.0), **options), whole)
    assert (slow.compute, slow.reduction) == (6.0, 4.0)  # 8 s, of which 4 s of the backward pass hide all they can
    local = predict(Setting(link=Link(latency_seconds=0.0, bytes_per_second=500.0, is_local=True), **options), whole)
    assert (local.compute, local.reduction) == (6.0, 8.0)
    fast = predict(Setting(link=Link(latency_seconds=0.0, bytes_per_second=5000.0), **options), whole)
    assert fast.reduction == pytest.approx(0.2)  # the first layer's gradient is ready last


def test_nothing_fits_and_the_largest_term_is_named() -> None:
    profile = alike(4, parameter_bytes=100, kept_bytes=1e6)
    report = plans(profile, [DeviceKind(count=2, memory_bytes=1e5)], Link.parse("1gbit"), microbatches=4)
    assert report.best is None
    assert "nothing fits" in report.verdict()
    assert "activations" in report.verdict()
    assert json.loads(report.to_json())["best"] is None


def test_plans_have_their_commands() -> None:
    report = plans(alike(8), [DeviceKind(count=4)], Link.parse("1gbit"), microbatches=8)
    commands = {one.name: one.command(["train.py"]) for one in report.plans}
    assert commands["one device"] == "python train.py"
    assert commands["data 4"] == "tfdist run --strategy multi-worker -n 4 train.py"
    hybrid = next(one for one in report.plans if one.name == "data 2 x pipeline 2")
    assert hybrid.layers == ("l4",)
    variables = f"TFDIST_STAGES=l4 TFDIST_SCHEDULE=1f1b TFDIST_MICROBATCHES={hybrid.microbatches}"
    run = "tfdist run --strategy pipeline -n 4 --mesh data=2,pipeline=2 train.py"
    assert commands[hybrid.name] == f"{variables} {run}"
    alone = next(one for one in report.plans if one.name == "pipeline 4")
    variables = "TFDIST_STAGES=l2,l4,l6 TFDIST_SCHEDULE=1f1b TFDIST_MICROBATCHES=8"
    run = "tfdist run --strategy pipeline -n 4 --mesh pipeline=4 train.py"
    assert commands[alone.name] == f"{variables} {run}"
    assert alone.code() == "stages=('l2', 'l4', 'l6')"


def test_devices_that_no_number_of_stages_divides() -> None:
    report = plans(alike(4, parameter_bytes=100), [DeviceKind(count=5, memory_bytes=450)], Link.parse("1gbit"))
    fitting = [one.name for one in report.plans if one.fits]  # a device has memory for two layers
    assert len(fitting) == 1
    assert fitting[0].startswith("pipeline: ")
    assert {one.name for one in report.plans if not one.fits} == {"one device", "data 5", "data 5, sharded optimizer"}
    assert [one.name for one in plans(alike(4), [DeviceKind(count=1)], Link.parse("1gbit")).plans] == ["one device"]
    assert {one.name for one in plans(alike(1), [DeviceKind(count=2)], FAST).plans} == {
        *("one device", "data 2", "data 2, sharded optimizer")
    }


@pytest.mark.parametrize("objective", ["time", "price"])
def test_one_of_unlike_devices_has_the_times_of_a_process_alone(objective: str) -> None:
    alone = dataclasses.replace(alike(1, parameter_bytes=100), update_seconds=2.0)
    profile = dataclasses.replace(alone, update_seconds=9.0, processes=2, alone=alone)
    kinds = [DeviceKind(name="old", count=2, price=1.0), DeviceKind(name="new", count=1, speed=2.0, price=1.5)]
    best = plans(profile, kinds, Link.parse("1gbit"), objective=objective).plans[0]
    assert [(one.devices, kinds[one.kind].name) for one in best.stages] == [(1, "new")]
    assert best.prediction.seconds == pytest.approx(2.5)


@pytest.mark.parametrize(
    ("options", "name", "mention"),
    [
        ({"schedule": "1f"}, "schedule", "1f1b"),
        ({"microbatches": 0}, "microbatches", "32 examples"),
        ({"microbatches": 64}, "microbatches", "32 examples"),
        ({"objective": "speed"}, "objective", "'price'"),
    ],
)
def test_wrong_requests_are_refused(options: dict[str, Any], name: str, mention: str) -> None:
    with refused(ConfigError, name=name, received=options[name], mentions=[mention]):
        plans(alike(4), [DeviceKind(count=2)], Link.parse("1gbit"), **options)


@pytest.mark.parametrize("text", ["", "fast", "fast=0", "fast=2,sped=3", "fast=2,speed=x", "fast=2,memory=0", "1=2"])
def test_wrong_kinds_of_devices_are_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        DeviceKind.parse(text)


@pytest.mark.parametrize("text", ["", "1", "0gbit", "fast", "1gb"])
def test_wrong_links_are_refused(text: str) -> None:
    with refused(ConfigError, name="link", received=text):
        Link.parse(text)


def test_the_search_takes_a_hundred_layers() -> None:
    setting = Setting(profile=alike(100), link=FAST, kinds=(DeviceKind(count=4),), microbatches=8, replicas=1)
    found = best_stages(setting)
    assert found is not None
    assert [one.begin for one in found] == [0, 25, 50, 75]


def test_planning_loads_no_tensorflow() -> None:
    names = "device_kinds division_plans layer_profile planner_link stage_cost stage_search step_time"
    code = f"import sys\nfrom tfdist.planner import tensor_layouts, {', '.join(names.split())}\n"
    code += "print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr
