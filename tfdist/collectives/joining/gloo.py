"""Describe the workers of a cluster to Horovod's gloo where no Horovod launcher did."""

import socket

from tfdist.cluster.cluster_values import Cluster, split_address


def variables(cluster: Cluster, store_address: str) -> dict[str, str]:
    """Return the variables by which Horovod's gloo finds the store and knows its ranks, as `horovodrun` sets them."""
    addresses = cluster.require_addresses()
    hosts = [split_address("address", address)[0] for address in addresses]
    distinct = list(dict.fromkeys(hosts))
    mine = hosts[cluster.worker_index]
    store_host, store_port = split_address("address", store_address)
    found = {
        "HOROVOD_RANK": str(cluster.worker_index),
        "HOROVOD_SIZE": str(cluster.num_workers),
        "HOROVOD_LOCAL_RANK": str([w for w, host in enumerate(hosts) if host == mine].index(cluster.worker_index)),
        "HOROVOD_LOCAL_SIZE": str(hosts.count(mine)),
        "HOROVOD_CROSS_RANK": str(distinct.index(mine)),
        "HOROVOD_CROSS_SIZE": str(len(distinct)),
        "HOROVOD_HOSTNAME": mine,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": store_host,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(store_port),
    }
    interface = _interface_of(mine)
    return found | ({"HOROVOD_GLOO_IFACE": interface} if interface else {})


def _interface_of(host: str) -> str | None:
    """Return the network interface of this machine that has the host's address, or None."""
    import psutil

    try:
        wanted = {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
    except OSError:
        return None
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address.partition("%")[0] in wanted for address in addresses):
            return name
    return None
