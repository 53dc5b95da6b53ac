"""Predicted steps of jobs: closed forms at both ends, monotony, published curves, and sums that articles do."""

import dataclasses
import math
import random
import statistics

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused
from tfdist.errors import ConfigError
from tfdist.planner.layer_profile import LayerProfile, Profile
from tfdist.planner.planner_link import Link
from tfdist.planner.scaling.host_network import HostNetwork
from tfdist.planner.scaling.job_cost import Price, cost, more_examples
from tfdist.planner.scaling.job_steps import EXACT, METHODS, TERMS, Job, predict
from tfdist.planner.scaling.worker_noise import expected_maximum, waiting

YEAR = 365.25 * 24 * 3600


def profile_of(
    forward: float,
    backward: float,
    sizes: list[int],
    *,
    batch: int = 64,
    parts: list[float] | None = None,
    fixed: float = 0.0,
    update: float = 0.0,
) -> Profile:
    """A model whose layers have these bytes of weights and equal parts of the time, or those that are given."""
    shares = parts or [1 / len(sizes)] * len(sizes)
    layers = tuple(
        LayerProfile(
            name=f"layer{place}",
            inputs=(place - 1,) if place else (),
            parameter_bytes=size,
            output_bytes=1000.0,
            gradient_bytes=1000.0,
            forward_seconds=(forward * share,),
            backward_seconds=(backward * share,),
        )
        for place, (size, share) in enumerate(zip(sizes, shares, strict=True))
    )
    return Profile(
        model="m",
        batch=batch,
        batch_sizes=(batch,),
        layers=layers,
        whole_seconds=(forward + backward,),
        fixed_seconds=fixed,
        update_seconds=update,
    )


def network_of(rate: float = 1e9, latency: float = 0.0, *, is_direct: bool = False, **more: object) -> HostNetwork:
    link = Link(latency_seconds=latency, bytes_per_second=rate, is_direct=is_direct)
    return HostNetwork(link=link, **more)  # type: ignore[arg-type]


SMALL = profile_of(0.1, 0.2, [10**7] * 4, fixed=0.003, update=0.02)


@pytest.mark.parametrize("method", METHODS)
def test_one_worker_is_one_device(method: str) -> None:
    found = predict(Job(profile=SMALL, network=network_of(1.0, 100.0), method=method, noise=0.5))
    assert found.seconds == pytest.approx(0.1 + 0.2 + 0.02 + 0.003)
    assert (found.reduction, found.stragglers, found.communication) == (0, 0, 0)


@pytest.mark.parametrize("method", [*EXACT[1:], "local-sgd", "parameter-server"])
def test_a_perfect_network_divides_computing(method: str) -> None:
    whole = dataclasses.replace(SMALL, update_seconds=0.0)
    found = predict(Job(profile=whole, network=network_of(1e30), method=method, workers=4))
    if method == "pipeline":
        assert found.compute + found.bubble == pytest.approx(0.3 / 4, rel=0.6)
    else:
        assert found.seconds == pytest.approx(0.3 / 4 + 0.003)


def test_latency_alone_and_bandwidth_alone() -> None:
    """One bucket after the backward pass takes 2 (p - 1) latencies, and 2 (p - 1) / p of the bytes."""
    one = profile_of(0.1, 0.2, [10**8])
    late = predict(Job(profile=one, network=network_of(1e30, 0.001), workers=8))
    assert late.reduction == pytest.approx(2 * 7 * 0.001)
    slow = predict(Job(profile=one, network=network_of(1e9), workers=8))
    assert slow.reduction == pytest.approx(2 * 7 / 8 * 0.1)
    adding = Link(latency_seconds=0.0, bytes_per_second=1e30, add_seconds_per_byte=1e-9)
    added = predict(Job(profile=one, network=HostNetwork(link=adding), workers=8))
    assert added.reduction == pytest.approx(7 / 8 * 0.1)


def test_computing_100_ms_and_exchanging_50_ms_takes_100_to_150_ms() -> None:
    network = network_of(1e9)  # two workers exchange 50 MB in 50 ms

    def step(forward: float, sizes: list[int]) -> float:
        whole = profile_of(2 * forward, 2 * (0.1 - forward), sizes, batch=2)
        return predict(Job(profile=whole, network=network, workers=2, bucket_bytes=10**6)).seconds

    assert step(0.05, [50 * 10**6]) == pytest.approx(0.150)  # the only bucket is full at the end
    assert step(0.03, [10**6] * 50) == pytest.approx(0.101)  # all but the last bucket is hidden
    local = Link(latency_seconds=0.0, bytes_per_second=1e9, is_local=True)
    whole = profile_of(0.06, 0.14, [10**6] * 50, batch=2)
    assert predict(Job(profile=whole, network=HostNetwork(link=local), workers=2)).seconds == pytest.approx(0.150)


def test_a_bucket_waits_for_the_one_before_it() -> None:
    """Gradients are there at 1.5 and 2 s; the first bucket travels until 2.5 s, the second one until 3.5."""
    whole = profile_of(2.0, 2.0, [10**6] * 2, batch=2)
    found = predict(Job(profile=whole, network=network_of(1e6), workers=2, bucket_bytes=1))
    assert found.seconds == pytest.approx(3.5)
    assert (found.reduction, found.hidden) == (pytest.approx(1.5), pytest.approx(0.5))


def test_the_optimizer_in_parts_updates_a_part() -> None:
    job = Job(profile=SMALL, network=network_of(1e30), workers=4, method="sharded")
    assert predict(job).update == pytest.approx(0.02 / 4)
    whole = dataclasses.replace(SMALL, slot_bytes=8 * 10**7)
    memory = {
        method: Job(profile=whole, network=network_of(), workers=4, method=method).memory_bytes
        for method in ("data", "sharded")
    }
    assert memory["data"] - memory["sharded"] == pytest.approx(6 * 10**7)


def test_workers_that_meet_seldom_exchange_seldom() -> None:
    job = Job(profile=SMALL, network=network_of(), workers=4, method="local-sgd", every=10, noise=0.1)
    found, each = predict(job), predict(dataclasses.replace(job, every=1))
    assert found.reduction == pytest.approx(each.reduction / 10)
    assert found.stragglers == pytest.approx(each.stragglers / math.sqrt(10))
    moments = dataclasses.replace(job, profile=dataclasses.replace(SMALL, slot_bytes=8 * 10**7))  # twice the weights
    assert predict(moments).reduction == pytest.approx(3 * found.reduction)


def test_servers_are_the_limit_of_many_workers() -> None:
    """Each worker takes and sends 40 MB, which is 40 ms of a server's link."""
    whole = dataclasses.replace(SMALL, update_seconds=0.0)
    for servers in (1, 4):
        job = Job(profile=whole, network=network_of(), workers=64, method="parameter-server", servers=servers)
        assert predict(job).seconds == pytest.approx(64 * 0.04 / servers)


def test_compressed_gradients_are_factors_of_squares() -> None:
    """A square layer of 1,000 x 1,000 and rank 2: 2 x 2 x 1,000 numbers in place of a million."""
    job = Job(profile=profile_of(0.1, 0.2, [4 * 10**6]), network=network_of(), workers=2, method="powersgd")
    assert job.wire_bytes() == [16_000]
    slow = dataclasses.replace(job, codec_seconds=0.002, codec_seconds_per_byte=1e-9)
    assert predict(slow).codec == pytest.approx(0.006)
    late = dataclasses.replace(job, network=network_of(1e30, 0.001))
    assert predict(late).reduction == pytest.approx(2 * 2 * 0.001)  # one factor after the other


def test_direct_sums_take_three_latencies() -> None:
    """Whatever the number of workers and of buckets: for permission, parts and sums. A small sum takes one."""
    latency = network_of(1e30, 0.001, is_direct=True)
    for workers in (2, 8):
        for layers in (1, 6):
            whole = profile_of(0.0, 1e-9, [8 << 20] * layers)
            found = predict(Job(profile=whole, network=latency, workers=workers))
            assert found.reduction == pytest.approx(3 * 0.001)
            sharded = predict(Job(profile=whole, network=latency, workers=workers, method="sharded"))
            assert len(Job(profile=whole, network=latency).buckets()) == layers
            # two go at the same time; they come back one by one
            assert sharded.reduction == pytest.approx((2 * -(-layers // 2) + 2 * layers) * 0.001)
        small = predict(Job(profile=profile_of(0.1, 0.2, [1000]), network=latency, workers=workers))
        assert small.reduction == pytest.approx(0.001)
    rate = network_of(1e9, is_direct=True)
    for workers in (2, 8):
        slow = predict(Job(profile=profile_of(0.1, 0.2, [10**8]), network=rate, workers=workers))
        assert slow.reduction == pytest.approx(2 * (workers - 1) / workers * 0.1)


def test_buckets_of_direct_sums_share_only_the_rate() -> None:
    """Each of the buckets takes 10 ms of the link and is there 300 ms later."""
    network = network_of(1e9, 0.1, is_direct=True)
    whole = profile_of(0.0, 1e-9, [10**7] * 5, batch=2)
    found = predict(Job(profile=whole, network=network, workers=2))
    assert found.reduction == pytest.approx(5 * 0.01 + 0.3)


def test_factors_of_all_layers_travel_together() -> None:
    """However many buckets the gradients fill, two messages go there and back, after the backward pass."""
    for layers in (1, 12):
        whole = profile_of(0.1, 0.2, [16 << 20] * layers)
        found = predict(Job(profile=whole, network=network_of(1e30, 0.01), workers=2, method="powersgd"))
        assert (found.reduction, found.hidden) == (pytest.approx(2 * 2 * 0.01), 0.0)


def test_the_last_worker_is_counted_once() -> None:
    """Times of two processes at once are those of the later one; four workers wait longer than two."""
    job = Job(profile=SMALL, network=network_of(), workers=2, noise=0.1)
    two = dataclasses.replace(job, profile=dataclasses.replace(SMALL, processes=2))
    assert predict(job).stragglers == pytest.approx(waiting(2, 0.1) * predict(job).compute)
    assert predict(two).stragglers == 0
    four = dataclasses.replace(two, workers=4)
    assert predict(four).stragglers == pytest.approx((waiting(4, 0.1) - waiting(2, 0.1)) * predict(four).compute)
    assert predict(dataclasses.replace(two, method="local-sgd", every=4)).stragglers == 0


@given(
    method=st.sampled_from(METHODS[1:]),
    workers=st.integers(2, 8),
    rate=st.floats(1e3, 1e12),
    faster=st.floats(1, 100),
    latency=st.floats(0, 0.1),
    sizes=st.lists(st.integers(0, 10**8), min_size=8, max_size=8),
    sums=st.sampled_from(["has_trees", "is_direct", "per_host"]),
    per_host=st.integers(1, 4),
)
@settings(max_examples=60, deadline=None)
def test_more_bandwidth_is_never_slower(
    method: str,
    workers: int,
    rate: float,
    faster: float,
    latency: float,
    sizes: list[int],
    sums: str,
    per_host: int,
) -> None:
    profile = profile_of(0.1, 0.2, sizes, update=0.01)
    steps = [
        predict(
            Job(
                profile=profile,
                network=network_of(
                    speed,
                    latency,
                    is_direct=sums == "is_direct",
                    has_trees=sums == "has_trees",
                    per_host=per_host,
                ),
                workers=workers,
                method=method,
            )
        ).seconds
        for speed in (rate, rate * faster)
    ]
    assert steps[1] <= steps[0] * (1 + 1e-9)


def test_terms_add_up_to_the_step() -> None:
    found = predict(Job(profile=SMALL, network=network_of(1e7), workers=4, noise=0.05))
    assert found.seconds == pytest.approx(sum(getattr(found, name) for name in TERMS))
    assert found.dominant == "reduction"


def test_the_last_of_many_workers() -> None:
    assert expected_maximum(2) == pytest.approx(1 / math.sqrt(math.pi), rel=1e-6)
    assert expected_maximum(3) == pytest.approx(1.5 / math.sqrt(math.pi), rel=1e-6)
    draw = random.Random(1)
    seen = statistics.fmean(max(draw.gauss(0, 1) for _ in range(100)) for _ in range(4000))
    assert expected_maximum(100) == pytest.approx(seen, rel=0.01)
    assert waiting(1024, 0.05) == pytest.approx(0.16, abs=0.005)


def test_hosts_share_their_link() -> None:
    """Eight devices on two hosts: within a host 2 x 3 / 4 of the bytes, between both all of them, by one link each."""
    fast = Link(latency_seconds=0.0, bytes_per_second=1e10)
    network = network_of(1e9, per_host=4, inside=fast)
    assert network.all_reduce_seconds(1e9, 8) == pytest.approx(1.5 / 10 + 1.0)
    assert network.all_reduce_seconds(1e9, 4) == pytest.approx(1.5 / 10)
    copying = network_of(1e9, per_host=4, inside=Link(latency_seconds=0.0, bytes_per_second=1e10, is_local=True))
    assert (copying.is_local(4), copying.is_local(5), network.is_local(4)) == (True, False, False)


def test_a_tree_has_fewer_latencies_than_a_ring_and_is_taken_where_they_decide() -> None:
    line = Link(latency_seconds=0.001, bytes_per_second=1e9, add_seconds_per_byte=1e-9)
    network = HostNetwork(link=line, has_trees=True)
    for devices, levels in ((2, 1), (3, 2), (8, 3), (9, 4)):
        ring, tree = line.all_reduce_seconds(1e6, devices), 2 * levels * 0.001 + 0.003
        assert network.all_reduce_seconds(1e6, devices) == pytest.approx(min(ring, tree))
        assert network.summing(1e6, devices).seconds == 2 * network.halving(1e6, devices).seconds
        assert network.summing(1e6, devices).seconds == network.all_reduce_seconds(1e6, devices)
        assert network.all_reduce_seconds(1e9, devices) == line.all_reduce_seconds(1e9, devices), "bytes decide"
    assert (network.all_reduce_seconds(1e6, 1), network.all_reduce_seconds(0.0, 8)) == (0, 0)


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"method": "magic"}, "method"),
        ({"workers": 0}, "workers"),
        ({"workers": 65}, "batch"),
        ({"noise": -1.0}, "noise"),
        ({"workers": 2, "method": "one device"}, "workers"),
    ],
)
def test_jobs_that_make_no_sense(change: dict[str, object], name: str) -> None:
    with refused(ConfigError, name=name):
        Job(profile=SMALL, network=network_of(), **change)  # type: ignore[arg-type]


def test_a_layer_alone_has_no_pipeline() -> None:
    job = Job(profile=profile_of(0.1, 0.2, [10]), network=network_of(), workers=2, method="pipeline")
    with refused(ConfigError, name="method", received="pipeline"):
        predict(job)
    assert job.memory_bytes == math.inf


# What others have published. Times of one device, without a network, are those of tf_cnn_benchmarks (TensorFlow 1.x,
# synthetic data, float32) on one P100, in images per second: https://www.tensorflow.org/guide/performance/benchmarks.
# Noise: 3 % for each worker's step, assumed.
P100_IMAGES = {"inception-v3": 142.0, "resnet-101": 130.0, "vgg-16": 154.0, "resnet-50": 219.0}
VGG_CONVOLUTIONS = [1728, 36864, 73728, 147456, 294912, 589824, 589824, 1179648, *[2359296] * 5]
VGG_DENSE = [102760448, 16777216, 4096000]
NOISE = 0.03


def published(name: str, batch: int) -> Profile:
    seconds = batch / P100_IMAGES[name]
    sizes = {
        "inception-v3": [4 * 24_000_000 // 48] * 48,
        "resnet-101": [4 * 44_500_000 // 100] * 100,
        "resnet-50": [4 * 25_500_000 // 50] * 50,
        "vgg-16": [4 * one for one in VGG_CONVOLUTIONS + VGG_DENSE],
    }[name]
    parts = [0.98 / 13] * 13 + [0.02 / 3] * 3 if name == "vgg-16" else None
    return profile_of(seconds / 3, 2 * seconds / 3, sizes, batch=batch, parts=parts)


def efficiency(name: str, batch: int, workers: int, network: HostNetwork, *, of: int = 1) -> float:
    steps = [
        predict(
            Job(
                profile=published(name, batch),
                network=network,
                workers=count,
                batch=batch * count,
                noise=NOISE,
                bucket_bytes=64 << 20,
            )
        ).seconds
        for count in (of, workers)
    ]
    return steps[0] / steps[1]


@pytest.mark.parametrize(("name", "measured"), [("inception-v3", 0.90), ("resnet-101", 0.90), ("vgg-16", 0.68)])
def test_horovod_on_512_gpus(name: str, measured: float) -> None:
    """128 hosts of 4 P100, RoCE with 25 Gbit/s, one ring over all GPUs: A. Sergeev, M. Del Balso, "Horovod", 2018."""
    network = HostNetwork(link=Link.parse("25gbit", delay_ms=0.01))
    assert efficiency(name, 64, 512, network) == pytest.approx(measured, abs=0.1)


def test_resnet_on_256_gpus() -> None:
    """32 hosts of 8 P100 with NVLink, 50 Gbit/s: P. Goyal et al., 2017, about 90 % from 8 to 256 GPUs."""
    inside = Link(latency_seconds=1e-5, bytes_per_second=20e9)
    network = HostNetwork(link=Link.parse("50gbit", delay_ms=0.03), per_host=8, inside=inside, has_trees=True)
    assert efficiency("resnet-50", 32, 256, network, of=8) == pytest.approx(0.9, abs=0.1)


def test_eight_devices_for_100_hours() -> None:
    assert cost(100 * 3600.0, 8, Price(hourly=2.0)).price == pytest.approx(1600)


def test_gpt_3_takes_355_years_of_a_v100() -> None:
    """3.14e23 operations at 28e12 a second; $4.6M at $1.50 an hour."""
    whole = profile_of(3.14e23 / 28e12 / 3, 2 * 3.14e23 / 28e12 / 3, [10], batch=1024)
    alone = predict(Job(profile=whole, network=network_of(), workers=1)).seconds
    assert alone / YEAR == pytest.approx(355, abs=1)
    many = predict(Job(profile=whole, network=network_of(1e30), workers=1024)).seconds
    assert cost(many, 1024, Price(hourly=1.5)).price == pytest.approx(4.6e6, rel=0.02)
    assert many / YEAR == pytest.approx(355 / 1024, rel=0.01)


def test_batches_at_and_far_below_the_noise_scale() -> None:
    """At the noise scale twice as many examples as with a tiny batch; far below it no more."""
    assert more_examples(1000, 1e-9, 1000.0) == pytest.approx(2)
    assert more_examples(64, 32, 1e9) == pytest.approx(1)
