#!/usr/bin/env bash
# Finding: an asynchronous checkpoint holds later values of variables that were made after the first one.
#
# Versions: TensorFlow 2.21.0, NumPy 2.3.5, Python 3.11.
# Behaviour: with `CheckpointOptions(enable_async=True)`, `save` copies all values first, so that training can go on
# while a thread writes. The list of what is copied is made once, by the first save. A variable that appears later,
# such as the counter or the head of a second phase, is not on it: the thread reads the variable itself, whenever it
# gets there. The checkpoint then mixes two moments of the training, and nothing is raised. `sync` after each save
# prevents it.
# Output seen: of 20 saves, 20 hold the early variable as it was, 4 the late one; with sync: of 20 saves, 20 hold the
# early variable as it was, 20 the late one. It is a race, so the script only asks that some are wrong.
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check tensorflow-cpu==2.21.0 numpy==2.3.5
cd "$folder"
TF_CPP_MIN_LOG_LEVEL=3 "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import tensorflow as tf

ROUNDS, LATER = 20, 99
options = tf.train.CheckpointOptions(enable_async=True)
module = tf.Module()
module.early = tf.Variable(0)
checkpoint = tf.train.Checkpoint(module=module)


def saved(number, sync):
    """Save both variables when they are `number`, change them after the save, and tell which ones were saved so."""
    module.early.assign(number)
    module.late.assign(number)
    path = checkpoint.save("folder/checkpoint", options=options)
    if sync:
        checkpoint.sync()
    module.early.assign(LATER)
    module.late.assign(LATER)
    checkpoint.sync()
    reader = tf.train.load_checkpoint(path)
    names = {name.split("/")[1]: name for name in reader.get_variable_to_shape_map() if name.startswith("module/")}
    return [int(reader.get_tensor(names[name])) == number for name in ("early", "late")]


checkpoint.save("folder/checkpoint", options=options)  # makes the list
checkpoint.sync()
module.late = tf.Variable(0)
for sync in (False, True):
    early, late = (sum(right) for right in zip(*(saved(number, sync) for number in range(ROUNDS))))
    print("with sync: " if sync else "", f"of {ROUNDS} saves, {early} hold the early variable as it was, ", sep="", end="")
    print(f"{late} the late one")
    assert early == ROUNDS and (late == ROUNDS) == sync, "the behaviour has changed"
PROGRAM
