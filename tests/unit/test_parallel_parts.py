"""Layers of a stage in parts along a model axis: the choice beside all choices, and what a plan makes of it."""

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.cluster.mesh import Mesh
from tfdist.errors import ConfigError
from tfdist.parallel.layouts import Layouts
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.division_plans import Plan, plans
from tfdist.planner.layer_profile import LayerProfile, Profile
from tfdist.planner.planner_link import Link
from tfdist.planner.stage_cost import Costs, costs, least, seconds_of

EIGHTHS = st.integers(0, 16).map(lambda count: count / 8)
FAST = Link(latency_seconds=0.0, bytes_per_second=1e12)


@st.composite
def stage(draw: st.DrawFn) -> list[Costs]:
    """Up to twelve layers, of which some cannot lie in parts, and some go on with what is in parts."""
    return [
        Costs(
            whole=draw(EIGHTHS),
            part=draw(st.none() | EIGHTHS),
            entering=draw(EIGHTHS),
            leaving=draw(EIGHTHS),
            summing=draw(EIGHTHS),
            has_summands=draw(st.booleans()),
            joins=draw(st.booleans()),
        )
        for _ in range(draw(st.integers(1, 12)))
    ]


@settings(max_examples=100, deadline=None)
@given(layers=stage())
def test_the_choice_equals_brute_force(layers: list[Costs]) -> None:
    choices = least(layers)
    assert len(choices) == len(layers)
    for first in (layers, layers[: (len(layers) + 1) // 2]):
        chosen = choices[len(first) - 1]
        every = itertools.product(*[(False, True) if one.part is not None else (False,) for one in first])
        best = min((seconds_of(first, one), sum(one)) for one in every)
        assert (seconds_of(first, chosen), sum(chosen)) == best


def test_what_travels_for_a_layer() -> None:
    """Two processes, 2 examples, a line of 1 byte in a second: an all_reduce of n bytes takes n seconds."""
    line = Link(latency_seconds=0.0, bytes_per_second=1.0)
    layers = [
        LayerProfile(name="a", output_bytes=4.0, gradient_bytes=3.0, forward_seconds=(1.0,), backward_seconds=(1.0,)),
        LayerProfile(
            name="b", inputs=(0,), output_bytes=5.0, divides=6, forward_seconds=(1.0,), backward_seconds=(1.0,)
        ),
    ]
    first, second = costs(layers, [2.0, 2.0], 2, line, rows=2)
    assert (first.whole, first.part) == (2.0, None)
    assert (second.part, second.entering, second.leaving, second.summing) == (1.0, 6.0, 5.0, 10.0)
    assert costs(layers, [2.0, 2.0], 4, line, rows=2)[1].part is None  # 4 does not divide 6


def pairs(**options: Any) -> Profile:
    """Four pairs of a wide and a narrow dense layer, which exchange nothing between them in parts."""
    layer = {"forward_seconds": (1.0,), "backward_seconds": (2.0,), "parameter_bytes": 1000, "divides": 8}
    layers = [
        LayerProfile(
            name=f"{'wide' if n % 2 == 0 else 'narrow'}{n // 2}",
            inputs=(n - 1,) if n else (),
            output_bytes=800.0 if n % 2 == 0 else 100.0,
            gradient_bytes=800.0 if n % 2 == 0 else 100.0,
            joins=n % 2 == 1,
            **{**layer, **options},
        )
        for n in range(8)
    ]
    return Profile(model="m", batch=32, batch_sizes=(32,), layers=tuple(layers), whole_seconds=(24.0,), slot_bytes=800)


def named(profile: Profile, name: str, link: Link = FAST, **kind: Any) -> Plan | None:
    report = plans(profile, [DeviceKind(count=4, **kind)], link, microbatches=4)
    return next((one for one in report.plans if one.name == name), None)


def test_a_plan_with_a_model_axis_has_its_command() -> None:
    plan = named(pairs(), "pipeline 2 x model 2")
    assert plan is not None
    assert (plan.mesh, plan.devices, plan.layers) == ("pipeline=2,model=2", 4, ("wide2",))
    assert plan.in_parts == ("wide0", "narrow0", "wide1", "narrow1", "wide2", "narrow2", "wide3", "narrow3")
    assert plan.prediction.memory[0].weights == 2000
    names = ",".join(plan.in_parts)
    variables = f"TFDIST_STAGES=wide2 TFDIST_SCHEDULE=1f1b TFDIST_MICROBATCHES=4 TFDIST_LAYOUTS=auto:{names}"
    run = "tfdist run --strategy pipeline -n 4 --mesh pipeline=2,model=2 train.py"
    assert plan.command(["train.py"]) == f"{variables} {run}"
    assert plan.code() == f"stages=('wide2',), layout_map='auto:{names}'"
    # 12 s of a stage in halves, four micro-batches through two stages: 5 times 1.5 s
    assert plan.prediction.seconds == pytest.approx(7.5, rel=1e-6)


def test_a_layer_lies_in_parts_where_it_makes_a_micro_batch_faster_or_fit() -> None:
    slow = Link(latency_seconds=0.0, bytes_per_second=10.0)
    assert named(pairs(), "pipeline 2 x model 2", slow) is None
    fitting = named(pairs(), "pipeline 2 x model 2", slow, memory_bytes=5000)  # a stage needs 8,400 whole
    assert fitting is not None
    assert fitting.fits
    assert len(fitting.in_parts) == 8
    assert named(pairs(divides=0), "pipeline 2 x model 2") is None
    one_cut = dataclasses.replace(pairs(), layers=tuple(pairs().layers[:7]), whole_seconds=(21.0,))
    assert named(one_cut, "pipeline 2 x model 2") is not None


def test_layouts_of_named_layers() -> None:
    found = Layouts(Mesh.parse("data=1,model=2"), "auto:wide,attention", batch="data")
    assert found.of("wide/kernel", (4, 8)) == (None, "model")
    assert found.of("other/kernel", (8, 8)) == (None, None)
    assert found.of("block/attention/query/kernel", (4, 2, 2)) == (None, "model", None)
    assert found.of("wide/bias", (8,)) == ("model",)
    found.require_all_matched()
    lost = Layouts(Mesh.parse("data=1,model=2"), "auto:wide,wider", batch="data")
    lost.of("wide/kernel", (4, 8))
    with refused(ConfigError, name="layout_map", received="wider"):
        lost.require_all_matched()
