#!/usr/bin/env bash
# Finding: dp-accounting's PLD accountant may report a larger epsilon than its Renyi accountant.
#
# Versions: dp-accounting 0.6.0, NumPy 2.3.5, Python 3.11.
# Behaviour: accounting by privacy loss distributions is known as the tighter of the two. It puts losses on a grid
# with intervals of 1e-4, on the safe side, and each step adds to that. With many steps of little loss, small batches
# from large data, the sum exceeds what the moments leave: a job stops early, or adds more noise than it needs. With
# value_discretization_interval=1e-5 it is the tighter one again. Both are upper bounds, so neither is wrong, and
# nothing says how much of an epsilon is the grid's.
# Output seen: 10**6 steps, rate 10**-4, noise 4: Renyi 0.104, PLD 0.168, with intervals of 1e-5 0.093
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check dp-accounting==0.6.0 numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import dp_accounting
from dp_accounting import pld, rdp

steps = dp_accounting.SelfComposedDpEvent(
    dp_accounting.PoissonSampledDpEvent(1e-4, dp_accounting.GaussianDpEvent(4.0)), 10**6
)


def epsilon(accountant):
    """Return what the steps cost at a delta of 1e-6."""
    return round(float(accountant.compose(steps).get_epsilon(1e-6)), 3)


renyi, losses = epsilon(rdp.RdpAccountant()), epsilon(pld.PLDAccountant())
fine = epsilon(pld.PLDAccountant(value_discretization_interval=1e-5))
print(f"10**6 steps, rate 10**-4, noise 4: Renyi {renyi}, PLD {losses}, with intervals of 1e-5 {fine}")
assert fine < renyi < losses, "the behaviour has changed"
PROGRAM
