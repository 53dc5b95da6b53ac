"""SIGTERM at a hundred moments of a training: each time it saves, ends with 143, and goes on to the same result.

python tests/soak/asked_to_end.py --times 100
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integration.forks import forks

SCRIPT = str(Path(__file__).parents[1] / "integration" / "cases" / "resumable.py")
POINTS = {
    "step": range(1, 12),
    "validation": (4, 8),
    "epoch-end": (4, 8),
    "save-middle": (None,),
    "save-commit": (None,),
}
SIZES = {"EXAMPLES": "14", "VALIDATION": "6"}  # four steps an epoch, and two of validation
ASKED_TO_END = 143


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100, help="how often; default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the moments; default: %(default)s")
    options = parser.parse_args()
    moments = random.Random(options.seed)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TFDIST_") and name != "TF_CONFIG"}
    outcomes: Counter[str] = Counter()
    points: Counter[str] = Counter()
    seconds = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with forks(folder, {**kept, **SIZES, "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": ""}) as forking:

            def run(name: str, faults: str = "") -> int:
                result, backup = str(folder / f"{name}.json"), str(folder / f"backup {name}")
                return forking.run(SCRIPT, result, backup, "tfdist", "2", TFDIST_FAULTS=faults)

            assert run("undisturbed") == 0, forking.output
            expected = (folder / "undisturbed.json").read_text()
            for number in range(options.times):
                point = moments.choice(list(POINTS))
                step = moments.choice(list(POINTS[point]))
                fault = {"kind": "term", "worker": 0, "at": point, "step": step}
                begun = time.monotonic()
                code = run(str(number), json.dumps([fault]))
                seconds.append(time.monotonic() - begun)
                points[point] += 1
                if code == 0:  # it came after the last step: there was nothing left to save
                    outcomes["came to its end"] += 1
                elif code != ASKED_TO_END:
                    outcomes[f"exit code {code}"] += 1
                    print(number, fault, code, forking.output[-1500:], sep="\n", flush=True)
                    continue
                elif run(str(number)) == 0:
                    outcomes["saved, ended with 143, and resumed"] += 1
                else:
                    outcomes["did not resume"] += 1
                    print(number, fault, forking.output[-1500:], sep="\n", flush=True)
                    continue
                if (folder / f"{number}.json").read_text() != expected:
                    outcomes["ANOTHER RESULT"] += 1
                    print(number, fault, "another result", flush=True)
    print(f"{options.times} times SIGTERM, at {dict(points)}")
    print(f"outcomes: {dict(outcomes)}")
    print(f"a run that was ended took {statistics.median(seconds):.1f} s, {max(seconds):.1f} s at most")


if __name__ == "__main__":
    main()
