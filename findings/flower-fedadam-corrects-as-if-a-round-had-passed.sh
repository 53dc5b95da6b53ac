#!/usr/bin/env bash
# Finding: Flower's FedAdam corrects the bias of its moments with the number of the next round.
#
# Versions: flwr 1.42.0, NumPy 2.3.5, Python 3.11.
# Behaviour: Adam divides the moments of step t by 1 - beta**t. FedAdam uses t = round + 1, although rounds begin at 1. The
# first update is 0.0735 where Adam's is 0.0990 with the same constants, and the second is nearer. A comparison with
# another FedAdam, or with the paper's, which corrects nothing, differs from the first round on at equal settings.
# Output seen: round 1: Flower 0.0735, Adam at t=1 0.0990, Adam at t=2 0.0735
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check flwr==1.42.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import logging

import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.INFO)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages are made without a run


def reply(node):
    """Return what a client sends whose one weight has become 1."""
    content = {"arrays": ArrayRecord({"w": Array(np.ones(1))}), "metrics": MetricRecord({"num-examples": 1})}
    return Message(RecordDict(content), reply_to=Message(RecordDict(), dst_node_id=node, message_type="train"))


def adam(step):
    """Return Adam's update for moments of one gradient of 1, corrected for this step, with FedAdam's constants."""
    rate = 0.1 * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
    return rate * 0.1 / (np.sqrt(0.01) + 1e-3)


strategy = FedAdam()
strategy.current_arrays = {"w": np.zeros(1)}
arrays, _ = strategy.aggregate_train(1, [reply(1), reply(2)])
found = round(float(arrays["w"].numpy()[0]), 4)
print(f"round 1: Flower {found:.4f}, Adam at t=1 {adam(1):.4f}, Adam at t=2 {adam(2):.4f}")
assert found == round(adam(2), 4) != round(adam(1), 4), "the behaviour has changed"
PROGRAM
