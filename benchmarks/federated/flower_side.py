"""Flower's part of a turn: `python flower_side.py secure|rounds JSON`, in an environment that has Flower.

secure: server and nodes are in this process, so messages cross no network, and only CPU time counts. rounds: Flower's
simulation, whose clients train softmax regression in NumPy, without a framework.
"""

import copy
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

logging.disable(logging.INFO)


def secure(setup: dict[str, Any]) -> dict[str, float]:
    """One sum: CPU seconds of a client and of the server, and the largest error of the mean."""
    from flwr.app import Context, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, ConfigRecord, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.compat.common import recorddict_compat as compat
    from flwr.server import LegacyContext, SimpleClientManager
    from flwr.server.client_proxy import ClientProxy
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id = TaskIdentity.run_id = 1
    TaskIdentity.node_id = 0

    count, length = setup["clients"], setup["length"]
    vector = np.random.default_rng(0).normal(scale=0.01, size=length).astype(np.float32)
    kept = {node: RecordDict() for node in range(1, count + 1)}
    seconds = {"client": 0.0}

    def fit(message: Any, _: Any) -> Any:
        result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([vector]), 10, {})
        return Message(compat.fitres_to_recorddict(result, False), reply_to=message)

    class Here:
        """A grid whose nodes are in this process."""

        def send_and_receive(self, messages: Any, timeout: Any = None) -> list[Any]:
            for message in messages:  # each node gets its own, as over a network
                message.content = copy.deepcopy(message.content)
            begun, replies = time.process_time(), []
            for message in messages:
                node = message.metadata.dst_node_id
                context = Context(run_id=1, node_id=node, node_config={}, state=kept[node], run_config={})
                replies.append(secaggplus_mod(message, context, fit))
            seconds["client"] += time.process_time() - begun
            return replies

    manager = SimpleClientManager()
    for node in kept:
        proxy = type("Proxy", (ClientProxy,), dict.fromkeys(ClientProxy.__abstractmethods__))(str(node))
        proxy.node_id = node
        manager.register(proxy)
    strategy = FedAvg(min_fit_clients=count, min_available_clients=count)
    context = LegacyContext(
        Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config={}),
        strategy=strategy,
        client_manager=manager,
    )
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    context.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(
        ndarrays_to_parameters([np.zeros_like(vector)]), keep_input=True
    )
    workflow = SecAggPlusWorkflow(setup["neighbours"] + 1, setup["threshold"], clipping_range=1.0)
    begun = time.process_time()
    workflow(Here(), context)
    whole = time.process_time() - begun
    found = compat.arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True)
    error = float(np.abs(parameters_to_ndarrays(found)[0] - vector).max())
    return {"client": seconds["client"] / count, "server": whole - seconds["client"], "error": error}


def rounds(setup: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds of each round except the first, in which actors start, and the accuracy after each."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    client, server = ClientApp(), ServerApp()
    found, ends = np.load(setup["data"]), list[tuple[float, float]]()

    @client.train()
    def train(message: Any, context: Any) -> Any:
        data = np.load(setup["data"])
        part = context.node_config["partition-id"]
        begin, end = data["ends"][part : part + 2]
        generator = np.random.default_rng([setup["seed"], part, message.content["config"]["server-round"]])
        before = message.content["arrays"].to_numpy_ndarrays()
        weights = _trained(before, data["x"][begin:end], data["y"][begin:end], setup, generator)
        metrics = MetricRecord({"num-examples": int(end - begin)})
        return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)

    def evaluate(_: int, arrays: Any) -> None:
        kernel, bias = arrays.to_numpy_ndarrays()
        right = (found["x_test"] @ kernel + bias).argmax(1) == found["y_test"]
        ends.append((time.perf_counter(), float(right.mean())))

    @server.main()
    def main(grid: Any, context: Any) -> None:
        count = setup["clients"]
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=count, min_available_nodes=count)
        weights = ArrayRecord([np.zeros((64, 10), np.float32), np.zeros(10, np.float32)])
        strategy.start(grid, weights, num_rounds=setup["rounds"], evaluate_fn=evaluate)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=setup["clients"], backend_config=resources)
    seconds = np.diff([when for when, _ in ends])[1:]
    return {"seconds": seconds.tolist(), "accuracy": [one for _, one in ends[1:]]}


def _trained(weights: Any, x: Any, y: Any, setup: dict[str, Any], generator: np.random.Generator) -> list[Any]:
    """Train one epoch by SGD on the mean cross-entropy of each batch."""
    kernel, bias = (one.copy() for one in weights)
    order, size = generator.permutation(len(x)), setup["batch_size"]
    for begin in range(0, len(x), size):
        rows = order[begin : begin + size]
        logits = x[rows] @ kernel + bias
        gradient = np.exp(logits - logits.max(1, keepdims=True))
        gradient /= gradient.sum(1, keepdims=True)
        gradient[np.arange(len(rows)), y[rows]] -= 1
        gradient *= setup["learning_rate"] / len(rows)
        kernel -= x[rows].T @ gradient
        bias -= gradient.sum(0)
    return [kernel, bias]


if __name__ == "__main__":
    asked = json.loads(sys.argv[2])
    found = {"secure": secure, "rounds": rounds}[sys.argv[1]](asked)
    Path(asked["into"]).write_text(json.dumps(found), encoding="utf-8")
