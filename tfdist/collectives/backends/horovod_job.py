"""The start of Horovod among the workers of a job, and the explanation of its failures.

`horovodrun` and `mpirun` bring ranks together themselves. For every other launcher the chief holds a store at its
own address (see `store`), where workers check in before Horovod starts. So a worker that does not come is named;
Horovod would end the process.
"""

import atexit
import contextlib
import functools
import hashlib
import itertools
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfdist.cluster.cluster_values import Cluster, split_address
from tfdist.collectives import rendezvous_store
from tfdist.collectives.byte_exchange import Exchange
from tfdist.collectives.collective import Collective, disagreement, hosts_of
from tfdist.collectives.membership import Membership
from tfdist.collectives.rendezvous_store import Store, StoreServer
from tfdist.compat.horovod import broken_connections
from tfdist.errors import ConfigError, DeadlineError, MissingDependencyError, WorkerLostError
from tfdist.native.horovod_record import find_installed
from tfdist.validation import counted
from tfdist.variables import WORKERS

_LOOPBACK = "127.0.0.1"
_ANOTHER_HOST = "192.0.2.1"  # of no host: for documentation (RFC 5737)
_HERE, _DOING = "here", "doing"
# All workers get the error of a mismatch with the same cycle of Horovod.
_ANSWER_SECONDS = 3.0
_EXIT_SECONDS = 5.0
_REPAIRED = 2  # the revision of our recipe since which the order of sums can be fixed
_ALONE = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"}


def import_horovod() -> Any:
    """Return `horovod.tensorflow`."""
    try:
        import horovod.tensorflow as hvd
    except ModuleNotFoundError as error:
        raise MissingDependencyError(
            "Horovod is not installed, and RingStrategy and horovod collectives are Horovod's. Install it: "
            "tfdist build horovod",
            name="horovod",
        ) from error
    except (ImportError, OSError, tf.errors.OpError) as error:
        raise MissingDependencyError(
            f"Horovod is installed but does not load under TensorFlow {tf.__version__} ({str(error).splitlines()[0]}). "
            "Build it for this TensorFlow: tfdist build horovod"
        ) from error
    return hvd


class _Stopper:
    """A handle that stops Horovod once: two requests at once would break it, and one may never end in a broken ring.

    Its thread waits from the beginning, because Python 3.12 starts none at its exit.
    """

    def __init__(self, hvd: Any) -> None:
        self._is_asked = threading.Event()
        self._thread = threading.Thread(target=self._stop, args=(hvd,), name="tfdist-stop", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        self._is_asked.set()

    def ended(self, timeout_seconds: float) -> bool:
        self._thread.join(timeout_seconds)
        return not self._thread.is_alive()

    def _stop(self, hvd: Any) -> None:
        self._is_asked.wait()
        hvd.shutdown()


def _leave(membership: Membership, stopper: _Stopper) -> None:
    """End this worker's part; this runs before Horovod's own handler."""
    membership.leave()
    if membership.cause is None:
        return
    stopper.begin()
    if not stopper.ended(_EXIT_SECONDS):
        sys.stdout.flush()
        sys.stderr.write("tfdist: Horovod does not come to an end in the broken ring; leaving without it.\n")
        sys.stderr.flush()
        os._exit(1)


def _give_up(membership: Membership, me: int) -> None:
    """Log the reason why Horovod ends this process, and end it: Horovod would not notify any Python code."""
    cause = membership.find_cause()
    sys.stdout.flush()
    sys.stderr.write(
        f"tfdist: WorkerLostError: worker {me} cannot continue, because the ring has broken: {cause}. "
        "See that worker's "
        "output, then start the job again.\n"
    )
    sys.stderr.flush()
    membership.leave()
    os._exit(1)


@dataclass(frozen=True, kw_only=True)
class Job:
    """The workers that Horovod has brought together; one job per process.

    Attributes:
        store, membership: the job's store, and this worker's entry in it; None for one worker alone.
        groups: the process sets that were given when Horovod was started.
        hosts: the number of each worker's host.
        mismatches: a counter, the same on all workers, so that none reads the report of an earlier mismatch.
    """

    hvd: Any
    cluster: Cluster
    store: Store | None
    membership: Membership | None
    stopper: _Stopper
    groups: Mapping[tuple[int, ...], Any]
    hosts: tuple[int, ...]
    mismatches: Iterator[int] = field(default_factory=itertools.count)

    def collective(self, members: Sequence[int], *, device: str = "", beside: Collective | None = None) -> Collective:
        """Return the collective of some workers, given in rising order; this worker must be one of them."""
        from tfdist.collectives.backends.horovod_collective import (
            HorovodCollective,  # loads Horovod, which `join` has seen to
        )

        me = self.cluster.worker_index
        process_set = self._process_set(tuple(members))
        if process_set is None:
            known = ", ".join(str(list(group)) for group in self.groups) or "none but that of all workers"
            raise ConfigError(
                f"Horovod was started without a group of the workers {list(members)}; it has {known}. Give all "
                "groups to the first strategy of a process, alike on every worker."
            )
        pairs = {
            rank: self._process_set((min(me, other), max(me, other)))
            for rank, other in enumerate(members)
            if other != me
        }
        return HorovodCollective(
            process_set,
            size=len(members),
            rank=list(members).index(me),
            hosts=hosts_of([self.hosts[worker] for worker in members]),
            pairs={rank: pair for rank, pair in pairs.items() if pair is not None},
            abort=self.abort if beside is None else functools.partial(self._abort_both, beside),
            explain=self.explain
            if beside is None
            else lambda error, what: self.explain(error, what) or beside.explain(error, what),
            device=device,
        )

    def _abort_both(self, beside: Collective, message: str) -> None:
        self.abort(message)
        beside.abort(message)

    def _process_set(self, members: tuple[int, ...]) -> Any:
        everybody = members == tuple(range(self.cluster.num_workers))
        return self.hvd.global_process_set if everybody else self.groups.get(members)

    def abort(self, message: str) -> None:
        """Stop Horovod on every rank; ranks that wait in a reduction get an error."""
        if self.membership is not None:
            self.membership.broken_by(f"worker {self.cluster.worker_index} gave up: {message}")
        self.stopper.begin()

    def explain(self, error: BaseException, what: str) -> Exception | None:
        """Translate a failure of a reduction, or return None if it is not Horovod's."""
        me, text = self.cluster.worker_index, str(error)
        if "Mismatched" in text:
            doing = f"workers do different things: {self._what_all_do(what)}"
            return disagreement(doing, told=f"Horovod: {_horovods_words(text)}")
        if "Horovod has" not in text or self.membership is None:
            return None
        return WorkerLostError(
            f"worker {me} was in {what} when the ring broke: {self.membership.find_cause()}. See that worker's output, "
            "then start the job again."
        )

    def _what_all_do(self, what: str) -> str:
        """Describe the operation of each worker at the mismatch; all workers ask, because all got the error."""
        mine, count = self.cluster.worker_index, self.cluster.num_workers
        doing = {mine: what}
        scope = f"{_DOING} {next(self.mismatches)}"
        if self.store is not None:
            with contextlib.suppress(OSError):
                self.store.put(scope, str(mine), what.encode())
            deadline = time.monotonic() + _ANSWER_SECONDS
            for worker in range(count):
                told = self.store.wait(scope, str(worker), max(0.0, deadline - time.monotonic()))
                if told is not None:
                    doing[worker] = told.decode()
        return "; ".join(f"worker {worker} was in {doing[worker]}" for worker in sorted(doing))


def _horovods_words(text: str) -> str:
    line = text.strip().splitlines()[0] if text.strip() else "nothing"
    begin = line.find("Mismatched")
    return line[max(begin, 0) :].split(" [[")[0].split(" [Op:")[0].strip()


_joined: list[Job] = []


def join(
    cluster: Cluster,
    *,
    groups: Sequence[Sequence[int]],
    timeout_seconds: float,
    lost_seconds: float,
    exchange: Exchange | None = None,
) -> Job:
    """Start Horovod among the workers of the cluster, once in a process; later calls return the same job."""
    hvd = import_horovod()
    wanted = tuple(tuple(group) for group in groups)
    if _joined:
        return _same(_joined[0], cluster, wanted)
    if hvd.is_initialized() and hvd.size() != cluster.num_workers:
        raise ConfigError(
            f"Horovod was started in this process with {counted(hvd.size(), 'rank')}, but the cluster "
            f"({cluster.source}) has {counted(cluster.num_workers, 'worker')}. Do not call hvd.init() before the "
            "strategy is made, or start the script with horovodrun."
        )
    sets = [hvd.ProcessSet(list(group)) for group in wanted]
    store = None
    if not hvd.is_initialized():
        by_launcher = cluster.source == "horovodrun" or (cluster.source in ("Open MPI", "PMI") and hvd.mpi_built())
        variables = {
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(max(1, round(lost_seconds))),
            **fixed_order(cluster.num_workers),
        }
        if cluster.num_workers == 1:
            variables |= _ALONE
        elif not by_launcher:
            store = _check_in(cluster, timeout_seconds, _store_address(cluster, exchange))
            variables |= rendezvous_store.variables(cluster, store.address)
        with _environment(variables):
            hvd.init(process_sets=sets)
    elif sets:
        raise ConfigError("groups need Horovod started by the strategy; do not call hvd.init() before it is made.")
    if cluster.num_workers > 1 and store is None:
        store = _store_over_horovod(hvd, cluster)
    membership, stopper = None, _Stopper(hvd)
    if store is not None:
        membership = Membership(
            store,
            index=cluster.worker_index,
            count=cluster.num_workers,
            addresses=cluster.addresses,
            on_broken=stopper.begin,
        )
        atexit.register(_leave, membership, stopper)
        if sets:
            broken_connections.in_place_of_abort(functools.partial(_give_up, membership, cluster.worker_index))
    job = Job(
        hvd=hvd,
        cluster=cluster,
        store=store,
        membership=membership,
        stopper=stopper,
        groups=dict(zip(wanted, sets, strict=True)),
        hosts=_hosts(hvd, cluster),
    )
    _joined.append(job)
    return job


def fixed_order(workers: int) -> dict[str, str]:
    """Return the variable by which Horovod reduces each group of tensors by itself, in its own order.

    Three and more ranks then add in the same order every time; two do so anyway, and fuse more without it. The variable
    breaks the ranks' caches in Horovod 0.28.1 as published; `tfdist build horovod` repairs this from its second
    revision.
    """
    if workers < 3:
        return {}
    found = find_installed()
    is_repaired = found is not None and found.record is not None and found.record.revision >= _REPAIRED
    return {"HOROVOD_DISABLE_GROUP_FUSION": "1"} if is_repaired else {}


def _same(job: Job, cluster: Cluster, groups: tuple[tuple[int, ...], ...]) -> Job:
    if (job.cluster.num_workers, job.cluster.worker_index) != (cluster.num_workers, cluster.worker_index):
        raise ConfigError(
            f"Horovod runs in this process as worker {job.cluster.worker_index} of {job.cluster.num_workers}; the "
            f"cluster ({cluster.source}) says worker {cluster.worker_index} of {cluster.num_workers}. A process "
            "belongs to one job; use another process."
        )
    if job.membership is not None and job.membership.cause is not None:
        raise WorkerLostError(
            f"Horovod has stopped in this process: {job.membership.cause}. A broken ring cannot be joined again; start "
            "the job again."
        )
    missing = [list(group) for group in groups if group not in job.groups]
    if missing:
        raise ConfigError(
            f"groups has {missing}, with which Horovod was not started in this process. Give all groups to the "
            "first one, alike on every worker.",
            name="groups",
            received=missing,
        )
    return job


@functools.cache
def _server(host: str, port: int) -> StoreServer:
    """Start the store's server, which stays as long as the process, because other workers still ask it."""
    return StoreServer(host, port)


def _store_address(cluster: Cluster, exchange: Exchange | None) -> str:
    given = cluster.require_addresses()[0]
    host, port = split_address("the chief's address", given)
    address, error = given, ""
    if cluster.is_chief:
        try:
            address = _server(host, port if exchange is None else 0).address
        except OSError as failed:
            error = failed.strerror or str(failed)
    if exchange is not None:
        told = json.loads(exchange(json.dumps([address, error]).encode())[0])
        address, error = str(told[0]), str(told[1])
    if error:
        raise ConfigError(
            f"worker 0 cannot listen at {given}: {error}. Give it an address of this host and a free port.",
            name=WORKERS.name,
            received=given,
            workers=(0,),
        )
    return address


def _check_in(cluster: Cluster, timeout_seconds: float, address: str) -> Store:
    """Return the store at an address once every worker has checked in."""
    addresses = cluster.require_addresses()
    store = Store(address)
    me = str(cluster.worker_index)
    if not _reach(store, me, timeout_seconds):
        raise DeadlineError(
            f"worker {me} could not reach worker 0 at {address} within {timeout_seconds:g} s. Is it running, does "
            "it make the same strategy, and does no firewall stand between?"
        )
    for worker in range(cluster.num_workers):
        began = time.monotonic()
        if store.wait(_HERE, str(worker), timeout_seconds) is not None:
            continue
        if time.monotonic() - began < timeout_seconds:
            raise WorkerLostError(
                f"worker 0 ({address}) ended while worker {me} waited for worker {worker} ({addresses[worker]}) to "
                "make its strategy. See worker 0's output, then start the job again."
            )
        raise DeadlineError(
            f"worker {worker} ({addresses[worker]}) has not come within {timeout_seconds:g} s; worker {me} waited "
            "for it to make its strategy. See its output."
        )
    return store


def _reach(store: Store, me: str, timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            store.put(_HERE, me, b"")
            return True
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)


def _store_over_horovod(hvd: Any, cluster: Cluster) -> Store:
    """Return a store on rank 0, whose address travels over Horovod itself."""
    text = b""
    if hvd.rank() == 0:
        host = _LOOPBACK if hvd.local_size() == hvd.size() else _own_address()
        text = _server(host, 0).address.encode()
    length = 256
    padded = tf.constant(list(text.ljust(length, b" ")), tf.uint8)
    address = hvd.broadcast(padded, root_rank=0, name="tfdist_store").numpy().tobytes().decode().strip()
    return Store(address)


def _own_address() -> str:
    """Return an address of this host at which others reach it."""
    own = socket.gethostbyname(socket.gethostname())
    if own.startswith("127."):  # Debian gives a host's own name an address that only the host itself reaches
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((_ANOTHER_HOST, 9))  # which sends nothing, and chooses an interface
            own = probe.getsockname()[0]
    return own


def _hosts(hvd: Any, cluster: Cluster) -> tuple[int, ...]:
    """Number the workers' hosts by address, or by asking over Horovod."""
    if cluster.addresses or cluster.num_workers == 1:
        hosts = [split_address("address", address)[0] for address in cluster.addresses]
        return hosts_of(hosts or [None])
    mine = hashlib.blake2b(socket.gethostname().encode(), digest_size=8).digest()
    table = hvd.allgather(tf.constant([list(mine)], tf.uint8), name="tfdist_hosts")
    return hosts_of([row.tobytes() for row in table.numpy()])


@contextlib.contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


class Notes:
    """Short messages between the workers of one strategy, through the job's store."""

    def __init__(self, store: Store, members: Sequence[int]) -> None:
        self._store = store
        self._scope = "notes " + ",".join(map(str, members))

    def leave_note(self, key: str, text: str) -> None:
        self._store.put(self._scope, key, text.encode())

    def wait_for_note(self, key: str, timeout_seconds: float) -> str | None:
        note = self._store.wait(self._scope, key, timeout_seconds)
        return None if note is None else note.decode()
