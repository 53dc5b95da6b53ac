"""Nodes that Ray's autoscaler starts and ends: raylets on this machine, each with an address of its own from 127.0.0.2.

Ray imports it in its monitor, as `provider: {type: external, module: tests.ray_provider.Provider}` says.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from ray.autoscaler.node_provider import NodeProvider
from ray.autoscaler.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE

HEAD, WORKER = "head", "worker"  # types of nodes; the first is also the name of the only one of its type
_NOTHING = (  # nothing is set up on a node that is this machine
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "head_start_ray_commands",
    "worker_setup_commands",
    "worker_start_ray_commands",
    "cluster_synced_files",
    "rsync_exclude",
    "rsync_filter",
)


def config(folder: str, head: dict[str, float], each: dict[str, float], most: int) -> dict[str, Any]:
    """Return the configuration of the autoscaler.

    Args:
        folder: for what nodes write.
        head: what the head has.
        each: what each other node has.
        most: how many of these there may be.
    """
    types = {
        HEAD: {"resources": head, "node_config": {}, "max_workers": 0},
        WORKER: {"resources": each, "node_config": {}, "min_workers": 0, "max_workers": most},
    }
    provider = {"type": "external", "module": "tests.ray_provider.Provider", "folder": folder}
    return {
        "cluster_name": "nodes",
        "max_workers": most,
        "idle_timeout_minutes": 0.1,
        "provider": {**provider, "disable_node_updaters": True, "disable_launch_config_check": True},
        "available_node_types": types,
        "head_node_type": HEAD,
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in _NOTHING},
    }


class Provider(NodeProvider):  # type: ignore[misc]
    """Starts and ends `ray start`, which ends with its raylet."""

    def __init__(self, provider_config: dict[str, Any], cluster_name: str) -> None:
        super().__init__(provider_config, cluster_name)
        self._lock = threading.RLock()
        self._tags = {HEAD: {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: HEAD}}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._count = 0
        option = "--gcs-address="  # of the monitor: where the head is, which had no port yet when the file was written
        [self._head] = [word.removeprefix(option) for word in sys.argv if word.startswith(option)]

    def create_node_with_resources_and_labels(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int, resources: dict[str, float], labels: Any
    ) -> None:
        with self._lock:
            for _ in range(count):
                self._create(tags, resources)

    def _create(self, tags: dict[str, str], resources: dict[str, float]) -> None:
        self._count += 1
        address = f"127.0.0.{self._count + 1}"
        words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", f"--address={self._head}"]
        words += [f"--node-ip-address={address}", "--min-worker-port=0", "--max-worker-port=0"]
        words += [f"--num-cpus={resources['CPU']:g}", "--num-gpus=1", "--dashboard-agent-listen-port=0"]
        log = open(f"{self.provider_config['folder']}/{address}.log", "wb")  # noqa: SIM115 - closed below
        with log:
            self._nodes[address] = subprocess.Popen(
                words,
                env={**os.environ, "RAY_CLOUD_INSTANCE_ID": address, "RAY_NODE_TYPE_NAME": WORKER},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._tags[address] = dict(tags)

    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        with self._lock:
            for address, process in list(self._nodes.items()):
                if process.poll() is not None:
                    del self._nodes[address], self._tags[address]
            wanted = tag_filters.items()
            return [node for node, tags in self._tags.items() if wanted <= tags.items()]

    def is_running(self, node_id: str) -> bool:
        with self._lock:
            return node_id in self._tags

    def is_terminated(self, node_id: str) -> bool:
        return not self.is_running(node_id)

    def node_tags(self, node_id: str) -> dict[str, str]:
        with self._lock:
            return dict(self._tags.get(node_id, {}))

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        with self._lock:
            if node_id in self._tags:
                self._tags[node_id] |= tags

    def internal_ip(self, node_id: str) -> str:
        return self._head.partition(":")[0] if node_id == HEAD else node_id

    external_ip = internal_ip

    def terminate_node(self, node_id: str) -> None:
        with self._lock:
            process = self._nodes.get(node_id)
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    process.send_signal(signal.SIGTERM)
