#!/usr/bin/env bash
# Finding: Flower's trimmed mean is a plain mean while beta times the number of clients is below 1.
#
# Versions: flwr 1.42.0, NumPy 2.3.5, Python 3.11.
# Behaviour: FedTrimmedAvg(beta=0.2) leaves out int(0.2 n) clients at each end. With four clients that is none, so one of
# them decides the mean, and nothing is reported. A federation of hospitals often has so few. With five, one is cut.
# Output seen: four clients, one of them at 100: 25.75; five: 1.00
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
from flwr.serverapp.strategy import FedTrimmedAvg
from flwr.supercore.task_identity import TaskIdentity

logging.disable(logging.INFO)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1  # messages are made without a run


def mean(*values):
    """Return what the strategy makes of clients with these weights."""
    replies = []
    for node, value in enumerate(values, start=1):
        sent = Message(RecordDict(), dst_node_id=node, message_type="train")
        arrays, metrics = ArrayRecord({"w": Array(np.array([value]))}), MetricRecord({"num-examples": 1})
        replies.append(Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=sent))
    found, _ = FedTrimmedAvg(beta=0.2).aggregate_train(1, replies)
    return float(found["w"].numpy()[0])


four, five = mean(100.0, 0.0, 1.0, 2.0), mean(100.0, 0.0, 1.0, 2.0, 0.0)
print(f"four clients, one of them at 100: {four:.2f}; five: {five:.2f}")
assert (four, five) == (25.75, 1.0), "the behaviour has changed"
PROGRAM
