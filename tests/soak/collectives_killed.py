"""Kill or stop one member of the native collectives, at random moments, some hundred times.

    .venv/bin/python -m tests.soak.collectives_killed [--times 500]

Each time, two to eight processes run collective operations without end, in shared memory or, every second time, on two
simulated hosts. Then one is killed (three times of four) or stopped. All others have to get an error that names it, and
none may continue to wait.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

from tfdist.native import library

ROOT = Path(__file__).parents[2]
ROUND = 20
DEADLINE_SECONDS = 300


def main() -> None:
    """Compile the test program and run it in rounds, so that the first failure says when it was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=500)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "check")
        core = [
            str(path) for path in library.COLLECTIVES.sources("*.cc") if path.name not in ("ops.cc", "cancellation.cc")
        ]
        sources = map(str, (ROOT / "tests" / "native" / "shared_memory").glob("*.cc"))
        subprocess.run(["c++", "-std=c++17", "-O2", "-pthread", *sources, *core, "-o", str(program)], check=True)
        for done in range(0, times, ROUND):
            subprocess.run([program, "kill", str(min(ROUND, times - done))], check=True, timeout=DEADLINE_SECONDS)
            print(
                f"{min(done + ROUND, times)} of {times}: every other member had an error that names the one", flush=True
            )


if __name__ == "__main__":
    main()
