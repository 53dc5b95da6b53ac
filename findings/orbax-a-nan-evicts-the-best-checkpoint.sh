#!/usr/bin/env bash
# Finding: with Orbax, a checkpoint whose metric is NaN counts as the best one, and the best ones are deleted.
#
# Versions: orbax-checkpoint 0.12.8, jax 0.10.2, NumPy 2.3.5, Python 3.11.
# Behaviour: a CheckpointManager with best_fn and max_to_keep=2 sorts its checkpoints by the metric, and deletes the
# worst. NaN is neither below nor above a number, so it stays where it is, at the end, where the best one belongs.
# best_step names it. Newer checkpoints remain behind it, and those from before it are deleted first. So one evaluation
# with NaN costs the best checkpoint of the run. best_mode "min" and "max" behave alike.
# Output seen: min of 0.5, 2, nan, 3, 4: keeps 3, 4, and keeps 0.5, 2 without the nan; after three the best is nan;
# max of 4, 3, nan, 2, 1: keeps 2, 1, and keeps 4, 3 without the nan; after three the best is nan
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    orbax-checkpoint==0.12.8 jax==0.10.2 jaxlib==0.10.2 numpy==2.3.5
cd "$folder"
JAX_PLATFORMS=cpu "$folder/venv/bin/python" -W ignore - <<'PROGRAM'
import math
import os

import numpy as np
import orbax.checkpoint as ocp


def kept(mode, losses):
    """Save a checkpoint for each loss, keeping the best two; return the losses of those kept, and of the best."""
    options = ocp.CheckpointManagerOptions(max_to_keep=2, best_fn=lambda metrics: metrics["loss"], best_mode=mode)
    with ocp.CheckpointManager(os.path.abspath(f"{mode}{len(os.listdir())}"), options=options) as manager:
        for step, loss in enumerate(losses):
            manager.save(step, args=ocp.args.StandardSave({"w": np.zeros(2)}), metrics={"loss": loss})
            manager.wait_until_finished()
        return [losses[step] for step in manager.all_steps()], losses[manager.best_step()]


for mode, losses in (("min", [0.5, 2.0, math.nan, 3.0, 4.0]), ("max", [4.0, 3.0, math.nan, 2.0, 1.0])):
    (found, _), (_, best) = kept(mode, losses), kept(mode, losses[:3])
    right, _ = kept(mode, [loss for loss in losses if not math.isnan(loss)])
    given, found_text, right_text = (", ".join(f"{loss:g}" for loss in some) for some in (losses, found, right))
    print(f"{mode} of {given}: keeps {found_text}, and keeps {right_text} without the nan; ", end="")
    print(f"after three the best is {best}{';' if mode == 'min' else ''}")
    assert right == losses[:2]
    assert found == losses[3:] and math.isnan(best), "the behaviour has changed"
PROGRAM
