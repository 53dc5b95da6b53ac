#!/usr/bin/env bash
# Finding: under MPICH, Allreduce with MAX gives ranks different results if one of them has a NaN.
#
# Versions: mpich 5.0.2 (wheel), mpi4py 4.1.1, NumPy 2.3.5, Python 3.11.
# Behaviour: each rank compares in its own order, and a comparison with NaN is false. So a NaN stays on some ranks and is
# dropped on others, and which ones depends on where it was. Ranks that decide by such a value (skip this step, lower the
# loss scale) go different ways. Reduce a flag of "is there a NaN" as an integer.
# Output seen: 2 ranks, NaN on rank 0: 2.0, nan; 3 ranks, NaN on rank 2: nan, nan, 2.0
# The script fails if the ranks agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check mpich==5.0.2 mpi4py==4.1.1 numpy==2.3.5
cd "$folder"
cat > program.py <<'PROGRAM'
import numpy as np
from mpi4py import MPI

world = MPI.COMM_WORLD
where = 0 if world.size == 2 else 2
given = np.array([np.nan if world.rank == where else world.rank + 1.0], np.float32)
found = np.zeros_like(given)
world.Allreduce(given, found, MPI.MAX)
results = world.gather(float(found[0]))
if world.rank == 0:
    print(f"{world.size} ranks, NaN on rank {where}: {', '.join(map(str, results))}")
    assert len({str(one) for one in results}) > 1, "the behaviour has changed"
PROGRAM
for ranks in 2 3; do "$folder/venv/bin/mpiexec" -n "$ranks" "$folder/venv/bin/python" program.py; done
