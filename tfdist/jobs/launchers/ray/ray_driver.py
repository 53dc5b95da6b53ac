"""Ray's driver in a separate process, because Ray ends its process when the cluster is gone.

`python -m tfdist.jobs.launchers.ray.ray_driver` speaks over its standard streams with `ray_cluster.Cluster`. Actors and
placement group end with it, and it ends with its standard input.
"""

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfdist.cluster.cluster_values import split_address
from tfdist.errors import TfdistError
from tfdist.jobs.connecting.wire import Wire, WireError
from tfdist.jobs.launchers.ray import ray_bundle
from tfdist.jobs.plan.host_plan import NoRoomError, resources_in_words, room, too_few
from tfdist.storage.files import write_whole
from tfdist.variables import CALL_FOLDER

WAIT_SECONDS = 600.0  # default wait for resources that other jobs use

_PROBE_SECONDS = 5.0
_LOOK_SECONDS = 0.5
_SILENT_SECONDS = 3.0  # shorter waits are not reported
_AGAIN_SECONDS = 10.0
_ACTOR_SECONDS = 120.0  # a process that imports Ray has to start
_END_SECONDS = 5.0
_CURE = (
    "Start one (ray start --head), or say where it is: --ray-address HOST:PORT, or ray://HOST:10001 from a machine "
    "that is none of its nodes."
)


def main() -> None:
    """Serve the launcher until it has ended."""
    wire = Wire(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)  # Ray's output must not mix with messages
    requests: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    gone = threading.Event()

    def read() -> None:
        while (message := wire.receive()) is not None:
            requests.put(message)
        gone.set()
        requests.put(None)
        time.sleep(_END_SECONDS)
        os._exit(1)  # Ray waits for something

    threading.Thread(target=read, name="requests", daemon=True).start()
    with contextlib.suppress(WireError):
        wire.begin()
        driver = Driver(wire, gone)
        while (request := requests.get()) is not None:
            try:
                driver.do(request)
            except TfdistError as error:
                wire.send({"error": str(error), "room": getattr(error, "room", None)})
            except Exception as error:  # noqa: BLE001 - any error is the answer
                wire.send({"error": f"Ray: {error}"})
        driver.close()
    os._exit(0)


class Driver:
    def __init__(self, wire: Wire, gone: threading.Event) -> None:
        self._wire = wire
        self._gone = gone
        self._group: Any = None
        self._actors: list[Any] = []
        self._where: list[dict[str, Any]] = []
        self._round = 0  # number of the allocation; earlier ones are ignored
        self._watches: list[threading.Thread] = []

    def do(self, request: dict[str, Any]) -> None:
        if request["do"] == "connect":
            connect(request["address"])
            self._wire.send({"connected": True})
        elif request["do"] == "allot":
            self._round += 1
            self._release()
            self._where = self._allotted(request["count"], request["resources"], request)
            self._wire.send({"allotted": self._where})
        else:
            assert request["do"] == "serve"
            self._serve(request["agents"], request["python"], request["arguments"], request["call"])

    def close(self) -> None:
        """Release everything; Ray is not used afterwards."""
        import ray

        self._gone.set()
        with contextlib.suppress(Exception):
            self._release()
            for watch in self._watches:
                watch.join(_END_SECONDS / 2)
            ray.shutdown()

    def _release(self) -> None:
        from ray.util import remove_placement_group

        if self._group is not None:
            remove_placement_group(self._group)  # which ends its actors
        self._group, self._actors = None, []

    def _allotted(self, count: int, bundle: dict[str, float], request: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Return the places that Ray has found for the bundles; wait for room, and report missing resources."""
        import ray
        from ray.util import placement_group

        begun, silent_until, told = time.monotonic(), _SILENT_SECONDS, ""
        most = WAIT_SECONDS if request["wait_seconds"] is None else request["wait_seconds"]
        while not self._gone.is_set():
            nodes = {node["NodeManagerAddress"]: node["Resources"] for node in ray.nodes() if node["Alive"]}
            there_is = room(bundle, list(nodes.values()))
            if request["wait_seconds"] is None and there_is < count:
                raise NoRoomError(too_few(count, bundle, nodes), there_is)
            if self._group is None:
                self._group = placement_group([bundle] * count, strategy=request["packing"], name=request["name"])
            if self._group.wait(_LOOK_SECONDS):
                with contextlib.suppress(ray.exceptions.RayError):  # a node was lost meanwhile
                    return self._held(bundle)
                self._release()
            waited, free = time.monotonic() - begun, resources_in_words(ray.available_resources())
            if waited > most:
                raise NoRoomError(
                    f"after {most:g} s there is still no room; free: {free}. {too_few(count, bundle, nodes)}", there_is
                )
            text = f"waiting for room in Ray's cluster: {count} x ({resources_in_words(bundle)}); free: {free}"
            if waited > silent_until and text != told:
                silent_until, told = waited + _AGAIN_SECONDS, text
                self._wire.send({"said": f"{text} (up to {most:g} s)"})
        raise TfdistError("the launcher is gone.")

    def _held(self, bundle: Mapping[str, float]) -> list[dict[str, Any]]:
        """Put an actor into each bundle; return their places."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray.cloudpickle.register_pickle_by_value(ray_bundle)
        actor = ray.remote(ray_bundle.Place)
        needs = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0), "memory": bundle.get("memory", 0)}
        self._actors = [
            actor.options(
                **needs,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index),
            ).remote()
            for index in range(len(self._group.bundle_specs))
        ]
        return ray.get([one.where.remote() for one in self._actors], timeout=_ACTOR_SECONDS)

    def _serve(
        self, agents: Mapping[str, Mapping[str, str]], python: str, arguments: list[str], call: tuple[str, str] | None
    ) -> None:
        """Run the agent of each host in its first actor; report each end."""
        along = None
        if call is not None:
            code, result = map(Path, call)
            along = (code.name, code.read_bytes(), result.name, CALL_FOLDER.name)
        addresses = [where["address"] for where in self._where]
        held = {}
        for address, variables in agents.items():
            serving = self._actors[addresses.index(address)]
            held[serving.serve.remote(python, arguments, variables, along)] = address
        self._watches = [one for one in self._watches if one.is_alive()]
        watch = threading.Thread(target=self._watch, args=(held, self._round, call), name="ends of agents", daemon=True)
        self._watches.append(watch)
        watch.start()

    def _watch(self, held: dict[Any, str], number: int, call: tuple[str, str] | None) -> None:
        import ray

        while held and not self._gone.is_set():
            try:
                ended, _ = ray.wait(list(held), timeout=_LOOK_SECONDS)
                ends = [(one, *_end_of(one, held[one], call)) for one in ended]
            except Exception as error:  # noqa: BLE001 - of any library below Ray; nobody else would report the ends
                ends = [(one, _lost(address, error), True) for one, address in held.items()]
            for one, said, lost in ends:
                if number != self._round:
                    return
                with contextlib.suppress(WireError):
                    self._wire.send({"ended": held.pop(one), "said": said, "lost": lost})


def _end_of(one: Any, address: str, call: tuple[str, str] | None) -> tuple[str, bool]:
    """Return the report of an agent's end, and whether Ray has lost its actor; keep the result of a function job."""
    import ray

    try:
        code, lines, back = ray.get(one)
    except ray.exceptions.RayError as error:
        return _lost(address, error), True
    if call is not None and back is not None:
        try:
            write_whole(Path(call[1]), back)
        except OSError as error:
            lines = [*lines, f"its result cannot be written ({error})"]
    return "\n".join([f"the agent of host {address} has ended with {code}", *lines]), False


def _lost(address: str, error: Exception) -> str:
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"Ray has lost the actor on {address}: {line}"


def connect(address: str) -> None:
    """Connect to a cluster, but never start one, not even when Ray is called after the cluster's end."""
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # Ray reads it when it is imported
    import ray

    plain = address.removeprefix("ray://")
    if plain != "auto":
        host, port = split_address("--ray-address", plain)
        try:
            socket.create_connection((host, port), timeout=_PROBE_SECONDS).close()
        except OSError as error:
            raise TfdistError(
                f"nothing answers at {address} ({error.strerror or error}), the address of Ray's cluster. {_CURE}"
            ) from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        cure = "Install the cluster's versions here." if "mismatch" in str(error) else _CURE
        raise TfdistError(f"Ray's cluster at {address} cannot be joined ({error}). {cure}") from error


if __name__ == "__main__":
    main()
