"""The selection and start of the collective backend of a strategy's workers, equal on all of them."""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict

from tfdist.cluster.cluster_values import Cluster, split_address
from tfdist.collectives import gpu_cards
from tfdist.collectives.backends import horovod_job, native_collective, replica_collectives
from tfdist.collectives.backends.replica_collectives import TwoLevelCollective
from tfdist.collectives.byte_exchange import Exchange, exchange_over_notes
from tfdist.collectives.collective import Collective
from tfdist.collectives.collective_selection import Offer, chosen, without_native
from tfdist.compat.tensorflow import coordination_service
from tfdist.compat.tensorflow import mirrored_extended as tf_strategies
from tfdist.errors import MissingDependencyError, UnsupportedError
from tfdist.native import library

_LOST_SECONDS = 120.0
_log = logging.getLogger(__name__)


def between_workers(
    tensorflows: Collective, asked: str, devices: Sequence[str], cluster: Cluster, *, timeout_seconds: float
) -> tuple[Collective, list[str]]:
    """Return the collective of a cluster's workers, and the cards of all replicas; all call this at the same time."""
    exchange = exchange_over_notes(
        coordination_service,
        name=f"tfdist/engine/{tf_strategies.new_group_key(within_worker=False)}",
        rank=cluster.worker_index,
        size=cluster.num_workers,
        timeout_seconds=timeout_seconds,
    )
    cards = tuple(gpu_cards.of_devices(devices))
    mine = Offer(asked=asked, devices=tuple(devices), missing=_missing(asked), cards=cards)
    told = [json.loads(one) for one in exchange(json.dumps(asdict(mine)).encode())]
    offers = [Offer(**one | {"devices": tuple(one["devices"]), "cards": tuple(one["cards"])}) for one in told]
    choice = chosen(offers)
    found = tensorflows
    if choice.engine == "native":
        try:
            found = _native(tensorflows, devices[0], cluster, exchange, timeout_seconds)
        except UnsupportedError as error:  # alike on all workers
            if asked == "native":
                raise
            choice = without_native(str(error))
    elif choice.engine == "horovod":
        job = horovod_job.join(
            cluster, groups=(), timeout_seconds=timeout_seconds, lost_seconds=_LOST_SECONDS, exchange=exchange
        )
        everybody = range(cluster.num_workers)
        found = job.collective(everybody, device=devices[0], beside=tensorflows)
    # A lack that can be mended is worth a warning, one for all workers.
    level = logging.WARNING if choice.is_second_best and cluster.is_chief else logging.INFO
    _log.log(level, "Tensors travel by %s collectives: %s.", choice.engine, choice.why)
    return found, [card for offer in offers for card in offer.cards]


def of_replicas(workers: Collective, devices: Sequence[str]) -> list[Collective]:
    """Return the collectives of this worker's replicas, given that of the workers, which have equally many."""
    if len(devices) == 1:
        return [workers]
    assert isinstance(workers, native_collective.NativeCollective)  # or this worker would not have several
    between = replica_collectives.in_order(workers)
    return [
        TwoLevelCollective(one, between, hosts=workers.hosts, index=workers.rank)
        for one in replica_collectives.of_replicas(devices)
    ]


def _missing(asked: str) -> str:
    """Return the reason why this worker lacks the requested backend, or ""."""
    if asked in ("native", "auto"):
        return library.why_not(library.COLLECTIVES, os.environ)
    if asked == "horovod":
        try:
            horovod_job.import_horovod()
        except MissingDependencyError as error:
            return str(error)
    return ""


def _native(
    tensorflows: Collective, device: str, cluster: Cluster, exchange: Exchange, timeout_seconds: float
) -> Collective:
    address, _ = split_address("address", cluster.require_addresses()[cluster.worker_index])
    # The strategy's watchdog knows what the worker was doing, so it comes first; the engine ends what Python cannot.
    return native_collective.of_workers(
        tensorflows, device=device, address=address, exchange=exchange, timeout_seconds=1.5 * timeout_seconds
    )
