"""Check what the environment says about the cluster, as a worker would read it.

Example:
    >>> judge({})[0].level.name
    'OK'
"""

from collections.abc import Mapping

from tfdist import cluster
from tfdist.doctor.finding import Finding, ok, problem
from tfdist.errors import ConfigError

LOOPBACK = ("127.0.0.1",)


def judge(environ: Mapping[str, str]) -> list[Finding]:
    """Say which cluster a script started here would join."""
    try:
        found = cluster.from_environment(environ)
    except ConfigError as error:
        return [problem("cluster", str(error), "a script started here ends with this error", "env | sort")]
    if found.num_workers == 1 and not found.parameter_servers:
        return [ok("cluster", f"one worker (from: {found.source})")]
    count = found.num_workers
    place = f"worker {found.worker_index} of {count}" if found.is_worker else f"{found.task}, {count} worker(s)"
    return [ok("cluster", f"{place} (from: {found.source}): {', '.join(found.addresses)}")]


def worker_hosts(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the hosts of the cluster that the environment describes; loopback when it describes none."""
    try:
        addresses = cluster.from_environment(environ).addresses
    except ConfigError:
        return LOOPBACK
    return tuple(address.rpartition(":")[0].strip("[]") for address in addresses) or LOOPBACK
