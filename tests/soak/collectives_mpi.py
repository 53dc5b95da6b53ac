"""Run the battery of collectives by Horovod over MPI: all operations and shapes, including NaNs in minima and maxima.

    python -m tests.soak.collectives_mpi [--members 2 3] [--mpirun PROGRAM]

It needs a Horovod of `tfdist build horovod --mpi`. mpirun starts the members. Each compares its results with the
required ones, to the bit: for single operations, in one function, and in groups that overlap.
"""

import argparse
import itertools
import os
import subprocess
import sys
from pathlib import Path

from tfdist.cluster import ports

CASES = Path(__file__).parents[1] / "integration" / "cases"
DEADLINE_SECONDS = 600


def member() -> None:
    """Run in each process; end with an error that says what is wrong."""
    sys.path.insert(0, str(CASES))
    import collective_cases
    import horovod.tensorflow as hvd

    from tfdist import cluster

    here = cluster.from_environment()
    groups = tuple(itertools.combinations(range(here.num_workers), 2)) if here.num_workers > 2 else ()
    wrong: list[str] = []
    for group in (None, *range(len(groups))):
        for traced in (True, False):
            wrong += collective_cases.operations("horovod", groups, group, traced)
    wrong += collective_cases.halves("horovod", groups)
    assert hvd.mpi_enabled(), "Horovod reduces without MPI"
    assert not wrong, "\n".join(wrong)
    print(f"member {here.worker_index} of {here.num_workers}: every result has its bits", flush=True)


def main() -> None:
    """Start members, some number after another."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--members", type=int, nargs="+", default=[2, 3])
    parser.add_argument("--mpirun", default="mpirun")
    options = parser.parse_args()
    given = {"TFDIST_STRATEGY": "ring", "TFDIST_COORDINATOR": f"127.0.0.1:{ports.free_ports(1)[0]}"}
    shared = [word for name in given for word in ("-x", name)]
    for members in options.members:
        words = [options.mpirun, "--allow-run-as-root", "--oversubscribe", "-np", str(members), *shared]
        words += [sys.executable, "-c", "from tests.soak import collectives_mpi; collectives_mpi.member()"]
        subprocess.run(words, check=True, timeout=DEADLINE_SECONDS, env={**os.environ, **given})


if __name__ == "__main__":
    main()
