"""Ray on this machine: a cluster of several nodes, each with a raylet and an address of its own, while a block runs.

Each node says that it has a GPU, which only Ray believes. The cluster lives in another process than the one that asks,
as it does for users.
"""

import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
SECONDS = 120.0


@contextlib.contextmanager
def ray_nodes(*cpus: int, more: int = 0) -> Iterator[str]:
    """Yield the address of a cluster whose nodes have so many CPUs; the first is the head, the others are 127.0.0.2...

    Args:
        cpus: of each node.
        more: so many nodes, of a CPU each, Ray's autoscaler may add where they are asked for; they end when they are
            idle for six seconds.
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
        [sys.executable, "-m", "tests.ray_nodes", str(more), *map(str, cpus)],
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


def added_nodes(address: str) -> list[str]:
    """Return the addresses of the nodes that a cluster has beside its head."""
    lines = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    options = [set(line) for line in lines if line and line[0].endswith("raylet")]
    here = {word for words in options if f"--gcs-address={address}" in words for word in words}
    return sorted(word for word in here if word.startswith("--node_ip_address=127."))


def files_of(address: str) -> list[Path]:
    """Return the files that a cluster has made: logs of its processes and of their actors, and what a session keeps."""
    raylets = [
        one for one in psutil.process_iter(["cmdline"]) if f"--gcs-address={address}" in (one.info["cmdline"] or ())
    ]
    folders = {one.environ()["RAY_TMPDIR"] for one in raylets}
    return [path for folder in folders for path in Path(folder).rglob("*") if path.is_file()]


def main() -> None:
    from ray.cluster_utils import Cluster

    few = {"num_gpus": 1, "include_dashboard": False, "include_log_monitor": False, "wait": False}
    more, head, *others = (int(word) for word in sys.argv[1:])
    scaling: dict[str, Any] = {"no_monitor": True}
    if more:
        scaling = autoscaled(head, more)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": head, **scaling, **few})
    try:
        for number, cpus in enumerate(others):
            cluster.add_node(num_cpus=cpus, node_ip_address=f"127.0.0.{number + 2}", **few)
        cluster.wait_for_nodes(SECONDS)
        print(cluster.address, flush=True)
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            for node in cluster.list_all_nodes():  # a raylet that was killed and is not reaped counts as alive to Ray
                node.dead_processes()
    finally:
        processes = psutil.Process().children(recursive=True)
        cluster.shutdown()
        for process in processes:  # those of nodes that the autoscaler has started are not this cluster's
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=SECONDS)  # who still writes would keep the folder


def autoscaled(head: int, more: int) -> dict[str, Any]:
    """Return the options with which a head lets Ray's autoscaler add nodes."""
    from tests import ray_provider

    folder = os.environ["RAY_TMPDIR"]
    path = Path(folder, "autoscaling.json")
    path.write_text(json.dumps(ray_provider.config(folder, {"CPU": head}, {"CPU": 1}, more)))
    variables = {"RAY_CLOUD_INSTANCE_ID": ray_provider.HEAD, "RAY_NODE_TYPE_NAME": ray_provider.HEAD}
    os.environ |= {"AUTOSCALER_UPDATE_INTERVAL_S": "1", "RAY_enable_autoscaler_v2": "1"}
    return {"autoscaling_config": str(path), "env_vars": variables}


if __name__ == "__main__":
    main()
