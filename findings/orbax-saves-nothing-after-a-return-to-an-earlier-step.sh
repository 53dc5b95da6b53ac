#!/usr/bin/env bash
# Finding: after a return to an earlier step, Orbax saves nothing until training has passed the old last step.
#
# Versions: orbax-checkpoint 0.12.8, jax 0.10.2, NumPy 2.3.5, Python 3.11.
# Behaviour: training diverged after step 100, so someone restores step 100, changes the rate, and trains on. While a
# checkpoint of step 200 exists, CheckpointManager.save writes nothing for steps up to 200. It returns False, which few
# programs read, and raises nothing. If the job is killed before step 200, the new steps are lost, and the restart
# continues from the latest step, which is the diverged one. delete(200) after the restore prevents this.
# Output seen: saves after the return: 110 False, 150 False, 190 False; a restart continues from step 200 of the
# old run; after delete(200): 110 True, 150 True, 190 True; a restart continues from step 190 of the new run
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import os

import numpy as np
import orbax.checkpoint as ocp

OLD, NEW = 0.0, 1.0


def trained_again(name, delete):
    """Train to step 200, return to step 100, train on and be killed; return what was saved, and what restarts."""
    folder = os.path.abspath(name)
    with ocp.CheckpointManager(folder) as manager:
        for step in (100, 200):
            assert manager.save(step, args=ocp.args.StandardSave({"run": np.full(2, OLD)}))
        manager.wait_until_finished()
        manager.restore(100)
        if delete:
            manager.delete(200)
        saved = {s: manager.save(s, args=ocp.args.StandardSave({"run": np.full(2, NEW)})) for s in (110, 150, 190)}
    with ocp.CheckpointManager(folder) as manager:
        step = manager.latest_step()
        return saved, step, float(manager.restore(step)["run"][0])


for delete in (False, True):
    saved, step, run = trained_again(str(delete), delete)
    print("after delete(200):" if delete else "saves after the return:", end=" ")
    print(", ".join(f"{number} {written}" for number, written in saved.items()), end="; ")
    print(f"a restart continues from step {step} of the {'new' if run == NEW else 'old'} run{'' if delete else ';'}")
    expected = ([delete] * 3, 190 if delete else 200, NEW if delete else OLD)
    assert (list(saved.values()), step, run) == expected, "the behaviour has changed"
PROGRAM
