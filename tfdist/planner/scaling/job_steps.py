"""The prediction of a job's step from its method and number of workers, term by term. Loads no TensorFlow.

In data parallelism, the gradients of layers fill buckets in the order of the backward pass, and the network reduces one
bucket after the other, each as soon as it is full; the latencies of buckets may overlap. The reduction that remains
after the backward pass is the term `reduction`. Workers wait for the last of them, which is later the more there are:
the term `stragglers`.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner.bucket_filling import BUCKET_BYTES, RoomUnderWay, filled_bytes
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.division_plans import Plan, plans
from tfdist.planner.layer_profile import Profile
from tfdist.planner.meeting_interval import Meetings
from tfdist.planner.planner_link import Transfer
from tfdist.planner.scaling.host_network import HostNetwork
from tfdist.planner.scaling.worker_noise import waiting
from tfdist.planner.stage_cost import Setting, Stage

#: the methods; the first four train to the weights of one device
METHODS = ("one device", "data", "sharded", "pipeline", "powersgd", "local-sgd", "parameter-server")
EXACT = METHODS[:4]
TERMS = ("compute", "stragglers", "bubble", "communication", "reduction", "codec", "update", "fixed")
#: the largest job for which stages of a pipeline are searched
MOST_IN_PIPELINES = 16
_FLOAT_BYTES = 4
_SHORTEST = 1e-9


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """The step of a job, in seconds for each term; with parameter servers, one step of each worker.

    Attributes:
        compute: the time of the forward and backward pass.
        stragglers: the wait for the last worker.
        bubble: the wait for other stages.
        communication: the communication between stages, or with servers.
        reduction: the reduction of gradients or weights between workers, after the backward pass.
        codec: the compression of gradients.
        update: the optimizer's update.
        fixed: the rest of a step.
        hidden: the communication that overlaps with the backward pass; not a part of the step.
    """

    compute: float = 0.0
    stragglers: float = 0.0
    bubble: float = 0.0
    communication: float = 0.0
    reduction: float = 0.0
    codec: float = 0.0
    update: float = 0.0
    fixed: float = 0.0
    hidden: float = 0.0

    @property
    def seconds(self) -> float:
        """The sum of all terms."""
        return math.fsum(getattr(self, name) for name in TERMS)

    @property
    def dominant(self) -> str:
        """The name of the largest term."""
        return max(TERMS, key=lambda name: float(getattr(self, name)))


class Exchange(NamedTuple):
    """One exchange of a step's gradients."""

    ready: float  # the seconds from the beginning of a step until its gradients are there
    transfer: Transfer  # its use of the network
    # the number of an earlier exchange that must have arrived before it begins, if there is one
    after: int | None = None


@dataclass(frozen=True, kw_only=True)
class Job:
    """A job: a model that some workers train with one method."""

    profile: Profile  # the profile of the model
    network: HostNetwork  # the network between workers
    device: DeviceKind = field(default_factory=DeviceKind)  # the device of each worker; its count does not matter
    method: str = "data"  # the method, one of `METHODS`
    workers: int = 1  # the number of workers, with one device each
    batch: int | None = None  # the number of examples in a step over all workers; by default that of the profile
    noise: float = 0.0  # the standard deviation of a worker's computing time, relative to that time
    bucket_bytes: int = BUCKET_BYTES  # the size in bytes of a bucket of gradients
    every: int = 8  # the number of steps between two means of the weights (local-sgd)
    servers: int = 1  # the number of servers that hold the weights (parameter-server)
    rank: int = 2  # the rank of the factors (powersgd)
    codec_seconds: float = 0.0  # the fixed time to compress and restore a layer's gradients (powersgd)
    codec_seconds_per_byte: float = 0.0  # the additional time for each byte of the gradients (powersgd)

    def __post_init__(self) -> None:
        validation.one_of("method", self.method, METHODS)
        for name in ("workers", "bucket_bytes", "every", "servers", "rank"):
            validation.integer(name, getattr(self, name), minimum=1)
        for name in ("noise", "codec_seconds", "codec_seconds_per_byte"):
            validation.number(name, getattr(self, name), minimum=0)
        hint = f"Each of the {self.workers} workers needs an example of a step."
        validation.integer("batch", self.examples, minimum=self.workers, hint=hint)
        if self.method == "one device" and self.workers > 1:
            raise ConfigError(
                f"the method is 'one device' with {self.workers} workers; give 1 worker, or another method.",
                name="workers",
                received=self.workers,
            )

    @property
    def examples(self) -> int:
        return self.profile.batch if self.batch is None else self.batch

    @property
    def local_batch(self) -> float:
        """The number of examples in a worker's part of a step."""
        return self.examples / self.workers

    @cached_property
    def _profile_of_batch(self) -> Profile:
        alone = self.profile.alone and dataclasses.replace(self.profile.alone, batch=self.examples)
        return dataclasses.replace(self.profile, batch=self.examples, alone=alone)

    @property
    def own_profile(self) -> Profile:
        """The profile for this number of workers and this batch."""
        return self._profile_of_batch.for_devices(self.workers)

    @cached_property
    def layer_seconds(self) -> list[tuple[float, float]]:
        """The seconds of the forward and backward pass of each layer on a worker."""
        speed = self.device.speed
        return [(one / speed, other / speed) for one, other in self.own_profile.seconds(self.local_batch)]

    @property
    def compute_seconds(self) -> float:
        """The seconds of the forward and backward pass on a worker."""
        return math.fsum(one + other for one, other in self.layer_seconds)

    @property
    def update_seconds(self) -> float:
        """The seconds of the optimizer's update of all weights."""
        return self.own_profile.update_seconds / self.device.speed

    @property
    def memory_bytes(self) -> float:
        """The memory in bytes of the worker that needs most."""
        if self.method == "pipeline":
            plan = self.pipeline
            return math.inf if plan is None else plan.memory.total
        shards = self.workers if self.method == "sharded" else 1
        kind = dataclasses.replace(self.device, count=self.workers)
        setting = Setting(
            profile=self.own_profile, link=self.network.link, kinds=(kind,), replicas=self.workers, shards=shards
        )
        stage = Stage(begin=0, end=len(self.profile.layers), devices=self.workers)
        return setting.memory(stage, self.workers).total

    @cached_property
    def pipeline(self) -> Plan | None:
        """The best pipeline that a strategy runs, if there is one."""
        if not 1 < self.workers <= MOST_IN_PIPELINES:
            return None
        kind = dataclasses.replace(self.device, count=self.workers)
        every = plans(self._profile_of_batch, [kind], self.network.link).plans
        found = [one for one in every if one.strategy == "pipeline"]
        return min(found, key=lambda one: (not one.fits, one.prediction.seconds), default=None)

    def buckets(self, *, is_forward: bool = False) -> list[tuple[int, float]]:
        """Return each bucket of gradients in the order of the backward pass, or of new weights in that of the layers.

        Each is the layer that completes it, and its size in bytes.
        """
        layers = list(enumerate(self.profile.layers))
        ordered = layers if is_forward else layers[::-1]
        return filled_bytes({place: one.parameter_bytes for place, one in ordered}, self.bucket_bytes)

    def exchanges(self) -> list[Exchange]:
        """Return each exchange of a step's gradients in its order.

        Without a codec there is one for each bucket. PowerSGD's factors of all gradients travel together when the last
        gradient is there, and the second ones need the sums of the first. A sharded optimizer limits the memory that
        buckets under way take.
        """
        if self.method == "powersgd":
            once = self.network.summing(math.fsum(self.wire_bytes()) / 2, self.workers)
            return [Exchange(self.compute_seconds, Transfer(2 * once.line, 2 * once.late))]
        ready, buckets = self.ready_seconds(), self.buckets()
        if self.method != "sharded":
            return [Exchange(ready[place], self.network.summing(size, self.workers)) for place, size in buckets]
        room, found = RoomUnderWay(self.bucket_bytes, [size for _, size in buckets]), list[Exchange]()
        for place, size in buckets:
            after = next(iter(room.before(size)), None)
            room.left_by(len(found))
            found.append(Exchange(ready[place], self.network.halving(size, self.workers), after))
        return found

    @property
    def wait(self) -> float:
        """The wait for the last worker, as a part of the computing time.

        Times that were measured in several processes at once are those of the last of them.
        """
        every = self.every if self.method == "local-sgd" else 1
        counted = waiting(self.profile.processes, self.noise)
        return max(waiting(self.workers, self.noise, every) - counted, 0.0)

    def gathering_seconds(self) -> float:
        """Return the seconds of gathering the new weights of each bucket on all workers (sharded)."""
        every = [self.network.halving(size, self.workers) for _, size in self.buckets(is_forward=True)]
        return math.fsum(one.seconds for one in every)  # each leaves when the one before it has been assigned

    def ready_seconds(self) -> list[float]:
        """Return the seconds from the beginning of a step until each layer's gradients are ready."""
        now = math.fsum(forward for forward, _ in self.layer_seconds)
        found = [0.0] * len(self.layer_seconds)
        for place in reversed(range(len(found))):
            now += self.layer_seconds[place][1]
            found[place] = now
        return found

    def wire_bytes(self) -> list[float]:
        """Return the bytes that are sent for each layer's gradients."""
        sizes = [float(one.parameter_bytes) for one in self.profile.layers]
        if self.method != "powersgd":
            return sizes
        return [min(one, _FLOAT_BYTES * 2 * self.rank * math.sqrt(one / _FLOAT_BYTES)) for one in sizes]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The network and the devices on which a job is to run."""

    network: HostNetwork  # the network between its workers
    device: DeviceKind = field(default_factory=DeviceKind)  # the device of each worker
    # the speeds of the slowest and the fastest such device, as parts of the device's speed
    speeds: tuple[float, float] = (1.0, 1.0)
    noise: float = 0.0  # the standard deviation of a worker's computing time, relative to that time
    # the seconds of PowerSGD for a layer's gradients, and for each byte of them
    codec: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()  # the assumptions, for the user

    def job(self, profile: Profile, method: str, workers: int, batch: int) -> Job:
        """Return the job that trains with this method there, with a server for every four workers."""
        return Job(
            profile=profile,
            network=self.network,
            device=self.device,
            method=method,
            workers=workers,
            batch=batch,
            noise=self.noise,
            codec_seconds=self.codec[0],
            codec_seconds_per_byte=self.codec[1],
            servers=max(workers // 4, 1),
        )


def predict(job: Job) -> StepTime:
    """Return the time of a job's step, term by term.

    Example:
        >>> from tfdist.planner.layer_profile import LayerProfile
        >>> from tfdist.planner.planner_link import Link
        >>> layer = LayerProfile(name="a", parameter_bytes=10**8, forward_seconds=(0.1,), backward_seconds=(0.2,))
        >>> profile = Profile(model="m", batch=8, batch_sizes=(8,), layers=(layer,), whole_seconds=(0.3,))
        >>> network = HostNetwork(link=Link(latency_seconds=0.0, bytes_per_second=1e9))
        >>> found = predict(Job(profile=profile, network=network, workers=2))
        >>> round(found.compute, 3), round(found.reduction, 3), found.dominant
        (0.15, 0.1, 'compute')
    """
    return _PREDICTED["one device" if job.workers == 1 else job.method](job)


def _one_device(job: Job) -> StepTime:
    return StepTime(compute=job.compute_seconds, update=job.update_seconds, fixed=job.own_profile.fixed_seconds)


def _data(job: Job) -> StepTime:
    one = _one_device(job)
    codec, sizes = 0.0, [one.parameter_bytes for one in job.profile.layers if one.parameter_bytes]
    if job.method == "powersgd":
        codec = (job.codec_seconds * len(sizes) + job.codec_seconds_per_byte * sum(sizes)) / job.device.speed
    late, hidden = _reduction(job)
    return dataclasses.replace(one, stragglers=job.wait * one.compute, reduction=late, codec=codec, hidden=hidden)


def _sharded(job: Job) -> StepTime:
    """Predict a step of a sharded optimizer: reduce gradients to parts, update each part, gather the weights."""
    one = _data(job)
    gathered = job.gathering_seconds()
    return dataclasses.replace(one, reduction=one.reduction + gathered, update=one.update / job.workers)


def _reduction(job: Job) -> tuple[float, float]:
    """Return the seconds of reduction after the backward pass, and those hidden behind it."""
    exchanges = job.exchanges()
    total = math.fsum(one.transfer.seconds for one in exchanges)
    end = max((float(arrived) for _, _, arrived in travel_times(exchanges)), default=0.0)
    if job.network.is_local(job.workers):
        return total, 0.0
    late = max(end - job.compute_seconds, 0.0) if total else 0.0
    return late, max(total - late, 0.0)


def travel_times(exchanges: Sequence[Exchange], last: Any = 1.0) -> Iterator[tuple[Any, Any, Any]]:
    """Yield for each exchange when it may take the line, when it has left the line, and when it has arrived.

    ``last`` is the factor by which the slowest worker computes longer: a number, or an array with one for each step.
    """
    free, arrived = 0.0, list[Any]()
    for one in exchanges:
        begin = free if one.after is None else np.maximum(free, arrived[one.after])
        free = np.maximum(begin, one.ready * last) + one.transfer.line
        arrived.append(free + one.transfer.late)
        yield begin, free, arrived[-1]


def _pipeline(job: Job) -> StepTime:
    plan = job.pipeline
    if plan is None:
        raise ConfigError(
            f"no pipeline of {job.workers} workers is known for {job.profile.model}: it takes 2 to {MOST_IN_PIPELINES} "
            "workers, and a model with as many layers that may begin a stage. Choose the method 'data'.",
            name="method",
            received=job.method,
        )
    found = plan.prediction
    return StepTime(
        compute=found.compute,
        stragglers=job.wait * found.compute,
        bubble=found.bubble,
        communication=found.communication,
        reduction=found.reduction,
        update=found.update,
        fixed=found.fixed,
    )


def meetings(job: Job) -> Meetings:
    """Return the costs of the meetings of local steps: means of the weights and of the optimizer's moments."""
    alone = _one_device(job).seconds
    size = job.profile.parameter_bytes + job.profile.slot_bytes
    travel = job.network.all_reduce_seconds(size, job.workers)
    return Meetings(step_seconds=max(alone, _SHORTEST), travel_seconds=travel)


def _local(job: Job) -> StepTime:
    one, mean = _one_device(job), meetings(job).period_seconds / job.every
    return dataclasses.replace(one, reduction=mean, stragglers=job.wait * one.compute)


def _servers(job: Job) -> StepTime:
    """Predict a step with parameter servers: workers wait for the servers' links and updates, not for each other."""
    one, size, link = _one_device(job), job.profile.parameter_bytes, job.network.link
    talking = 2 * link.send_seconds(size)
    own = one.compute + one.fixed + talking
    served = job.workers * (size / job.servers / link.bytes_per_second + one.update / job.servers)
    return dataclasses.replace(one, update=0.0, communication=talking + max(served - own, 0.0))


_PREDICTED: dict[str, Callable[[Job], StepTime]] = {
    "one device": _one_device,
    "data": _data,
    "sharded": _sharded,
    "pipeline": _pipeline,
    "powersgd": _data,
    "local-sgd": _local,
    "parameter-server": _servers,
}
