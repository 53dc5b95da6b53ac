"""Latencies in predicted steps: those of sums, gathers and full pipelines, by closed forms and by a played schedule."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfdist.planner.bucket_filling import FIRST_BYTES, RoomUnderWay, filled
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.division_plans import plans
from tfdist.planner.layer_profile import LayerProfile, Profile
from tfdist.planner.meeting_interval import travel_seconds
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling.host_network import HostNetwork
from tfdist.planner.scaling.job_steps import Job
from tfdist.planner.schedules.schedule_orders import named
from tfdist.planner.schedules.schedule_table import Work
from tfdist.planner.stage_cost import Setting, Stage
from tfdist.planner.step_time import predict

MIB = 1 << 20
FAST, SLOW = 1e9, 1e7  # bytes per second


def direct(rate: float, latency: float = 0.003) -> Link:
    return Link(latency_seconds=latency, bytes_per_second=rate, is_direct=True)


@pytest.mark.parametrize(
    ("rate", "members", "size", "latencies"),
    [
        (FAST, 2, 16 * MIB, 3),  # permission, parts, sums
        (FAST, 8, 16 * MIB, 3),
        (SLOW, 2, 16 * MIB, 3),
        (SLOW, 4, 16 * MIB, 2 + 3),  # on a slow line the sums go around
        (SLOW, 8, 16 * MIB, 2 + 7),
        (SLOW, 9, 16 * MIB, 3),  # that many do not
        (FAST, 4, MIB, 2),  # permission, all numbers
        (FAST, 4, 64 << 10, 1),
    ],
)
def test_a_direct_sum_waits_for_so_many_messages(rate: float, members: int, size: int, latencies: int) -> None:
    sum_of, bytes_alone = (direct(rate, latency).all_reduce_seconds(size, members) for latency in (1.0, 0.0))
    assert sum_of - bytes_alone == pytest.approx(latencies, abs=0.01)


def test_a_gathering_of_equal_parts_takes_as_long_as_a_scattering() -> None:
    for members, rate in itertools.product((2, 4), (FAST, SLOW)):
        link, size = direct(rate), 8 * MIB
        moved = (members - 1) / members * size / rate
        for found in (link.scattering(size, members), link.gathering(size, members)):
            assert found.line == pytest.approx(moved)
            assert found.late == pytest.approx(2 * 0.003)
        assert link.gathering(64 << 10, members).late == pytest.approx(0.003)
    ring = Link(latency_seconds=0.003, bytes_per_second=FAST)
    assert ring.scattering(8 * MIB, 4).seconds + ring.gathering(8 * MIB, 4).seconds == pytest.approx(
        ring.all_reduce_seconds(8 * MIB, 4)
    )


@pytest.mark.parametrize("many", [MIB, 16 * MIB])
@pytest.mark.parametrize("members", [2, 4, 9])
@pytest.mark.parametrize("rate", [1.25e7, 1.25e8, 1.25e9])
@pytest.mark.parametrize("latency", [0.0002, 0.005, 0.05])
def test_a_link_follows_from_its_sums(many: int, members: int, rate: float, latency: float) -> None:
    link = direct(rate, latency)
    few_and_many = [(size, link.all_reduce_seconds(size, members)) for size in (4 << 10, many)]
    found = Link.of_direct(few_and_many[0], few_and_many[1], members)
    assert found.latency_seconds == pytest.approx(latency, rel=1e-6)
    assert found.bytes_per_second == pytest.approx(rate, rel=1e-6)


def test_all_who_predict_count_the_same_latencies() -> None:
    link, size, workers = direct(SLOW, 0.1), 16 * MIB, 4
    once = link.all_reduce_seconds(size, workers)
    assert HostNetwork(link=link).summing(size, workers).seconds == once
    assert HostNetwork(link=link).all_reduce_seconds(size, workers) == once
    assert travel_seconds(link, 2 * (workers - 1) / workers * size, workers) == pytest.approx(once)


def test_a_sharded_optimizer_gathers_after_its_update() -> None:
    """Six layers of 2 MiB: a bucket of one, two of two, and one of one are gathered, each with two latencies."""
    layers = tuple(
        LayerProfile(name=f"l{n}", parameter_bytes=2 * MIB, forward_seconds=(1.0,), backward_seconds=(2.0,))
        for n in range(6)
    )
    profile = Profile(model="m", batch=2, batch_sizes=(2,), layers=layers, whole_seconds=(18.0,))
    link, kinds = direct(1e30, 0.1), (DeviceKind(count=2),)
    found, sharded = (
        Setting(profile=profile, link=link, kinds=kinds, replicas=2, shards=shards).reduction_seconds(
            Stage(begin=0, end=6, devices=2)
        )
        for shards in (1, 2)
    )
    assert found == pytest.approx(3 * 0.1)
    assert sharded == pytest.approx((2 + 4 * 2) * 0.1)
    job = Job(profile=profile, network=HostNetwork(link=link), method="sharded", workers=2)
    assert job.gathering_seconds() == pytest.approx(4 * 2 * 0.1)


@given(sizes=st.lists(st.integers(1, 6 * MIB), min_size=1, max_size=12), limit=st.integers(MIB // 2, 8 * MIB))
@settings(max_examples=100, deadline=None)
def test_buckets_are_as_full_as_they_may_be(sizes: list[int], limit: int) -> None:
    buckets = filled({place: ("f", size) for place, size in enumerate(sizes)}, limit)
    assert list(itertools.chain(*buckets)) == list(range(len(sizes)))
    for number, bucket in enumerate(buckets):
        most = limit if number else min(FIRST_BYTES, limit)
        held = sum(sizes[place] for place in bucket)
        assert held <= most or len(bucket) == 1
        if number + 1 < len(buckets):
            assert held + sizes[buckets[number + 1][0]] > most


def test_two_buckets_are_under_way_and_small_ones_besides() -> None:
    room, awaited = RoomUnderWay(4.0, [4.0]), list[list[int]]()
    for place, size in enumerate([4.0, 0.5, 4.0, 4.0, 4.0]):
        awaited.append(room.before(size))
        room.left_by(place)
    assert awaited == [[], [], [], [0], [2]]


def played(schedule: str, stages: int, microbatches: int, latency: float) -> float:
    """The end of a schedule whose passes take 1 and 2, and whose messages take a latency."""
    found = named(schedule, stages=stages, microbatches=microbatches)
    ends: dict[tuple[int, Work], float] = {}
    free, place = [0.0] * stages, [0] * stages
    while any(at < len(order) for at, order in zip(place, found.orders, strict=True)):
        for stage, order in enumerate(found.orders):
            while place[stage] < len(order):
                work = order[place[stage]]
                needed = list(found.needs(stage, work))
                if not all(one in ends for one in needed):
                    break
                arrived = [ends[one] + (latency if one[0] != stage else 0.0) for one in needed]
                free[stage] = max([free[stage], *arrived]) + (1 if work.kind == "forward" else 2)
                ends[stage, work] = free[stage]
                place[stage] += 1
    return max(ends.values())


def chain(layers: int, batch: int) -> Profile:
    """Layers that pass on a byte, and compute for 1 and 2 seconds for each example."""
    each = tuple(
        LayerProfile(
            name=f"layer{place}",
            inputs=(place - 1,) if place else (),
            output_bytes=1.0,
            gradient_bytes=1.0,
            forward_seconds=(float(batch),),
            backward_seconds=(2.0 * batch,),
        )
        for place in range(layers)
    )
    return Profile(model="m", batch=batch, batch_sizes=(batch,), layers=each, whole_seconds=(3.0 * batch * layers,))


@pytest.mark.parametrize("latency", [0.0, 4.0, 40.0])
def test_the_micro_batches_of_the_shortest_schedule_are_chosen(latency: float) -> None:
    """Over a slow link two micro-batches, which are under way together, take less time than sixteen."""
    link = Link(latency_seconds=latency, bytes_per_second=1e30)
    found = plans(chain(2, 16), [DeviceKind(count=2)], link)
    best = min((one for one in found.plans if one.strategy == "pipeline"), key=lambda one: one.prediction.seconds)
    ends = {count: 16 / count * played("1f1b", 2, count, latency * count / 16) for count in (1, 2, 4, 8, 16)}
    assert best.microbatches == min(ends, key=lambda count: ends[count])
    assert best.prediction.seconds == pytest.approx(min(ends.values()), rel=0.03)


@pytest.mark.parametrize("schedule", ["1f1b", "eager-1f1b", "gpipe"])
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_pipelines_wait_until_micro_batches_return(schedule: str, stages: int) -> None:
    for microbatches, latency in itertools.product((1, 2, 4, 8, 16), (0.0, 0.1, 1.0, 5.0, 50.0)):
        setting = Setting(
            profile=chain(stages, microbatches),
            link=Link(latency_seconds=latency, bytes_per_second=1e30),
            kinds=(DeviceKind(count=stages),),
            schedule=schedule,
            microbatches=microbatches,
            replicas=1,
        )
        found = predict(setting, [Stage(begin=place, end=place + 1) for place in range(stages)]).seconds
        exact = played(schedule, stages, microbatches, latency)
        if stages < 4:
            assert found == pytest.approx(exact, rel=0.03)
        else:
            assert 0.85 * exact <= found <= exact * (1 + 1e-9)
