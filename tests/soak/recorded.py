"""Record a million steps and check that memory does not grow: Python's blocks, the process, the file.

python tests/soak/recorded.py --steps 1000000
"""

import argparse
import gc
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.simulated_steps import Driven

LOOKS = 10


def main() -> None:
    """Record, and print a line at each look."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_000_000)
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as folder:
        driven, process = Driven(Path(folder)), psutil.Process()
        for look in range(LOOKS + 1):
            began = time.process_time()
            for _ in range(steps // LOOKS if look else 5000):
                driven.step()
            driven.recorder.flush()
            gc.collect()
            size = driven.recorder.path.stat().st_size
            print(f"{driven.count:9,} steps: {sys.getallocatedblocks()} blocks, "
                  f"{process.memory_info().rss / 1e6:.2f} MB, a file of {size} bytes, "
                  f"{time.process_time() - began:.1f} s", flush=True)  # fmt: skip
        driven.recorder.close()


if __name__ == "__main__":
    main()
