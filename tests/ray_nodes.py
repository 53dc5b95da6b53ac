"""Ray on this machine: a cluster of several nodes, each with a raylet and an address of its own, while a block runs.

Each node says that it has a GPU, which only Ray believes. The cluster lives in another process than the one that asks,
as it does for users.
"""

import contextlib
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 120.0


@contextlib.contextmanager
def ray_nodes(*cpus: int) -> Iterator[str]:
    """Yield the address of a cluster whose nodes have so many CPUs; the first is the head, the others are 127.0.0.2...

    Args:
        cpus: of each node.
    """
    folder = tempfile.mkdtemp(prefix="ray", dir="/tmp")  # paths of sockets are short
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "TFDIST_"))}
    environ |= {
        "RAY_TMPDIR": folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": str(int(SECONDS)),
        "PYTHONPATH": str(ROOT),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.ray_nodes", *map(str, cpus)],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the cluster has not started"
        yield address
    finally:
        try:
            process.communicate(timeout=SECONDS)  # closes its input
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    from ray.cluster_utils import Cluster

    few = {"num_gpus": 1, "include_dashboard": False, "include_log_monitor": False, "wait": False}
    head, *others = (int(word) for word in sys.argv[1:])
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head, "no_monitor": True, **few})
    try:
        for number, cpus in enumerate(others):
            cluster.add_node(num_cpus=cpus, node_ip_address=f"127.0.0.{number + 2}", **few)
        cluster.wait_for_nodes(SECONDS)
        print(cluster.address, flush=True)
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            for node in cluster.list_all_nodes():  # a raylet that was killed and is not reaped counts as alive to Ray
                node.dead_processes()
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
