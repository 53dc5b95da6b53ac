"""Linger for ten seconds wherever a script can have code of its own, under every strategy: no worker may be blamed.

True hangs have to be found in time.

    python tests/soak/linger.py --seconds 10               # about 20 minutes for each strategy and lingering role
    python tests/soak/linger.py --hangs                    # about 10 minutes
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.integration.light import python_path

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "integration" / "cases"
FLAGS = {
    "no scope": (),
    "mirrored": ("--strategy", "mirrored", "--replicas-per-worker", "2"),
    "multi-worker": ("--strategy", "multi-worker", "-n", "2"),
    "ring": ("--strategy", "ring", "-n", "2"),
    "parameter-server": ("--strategy", "parameter-server", "-n", "2", "--parameter-servers", "1"),
}
KINDS = ("py_function", "lock", "stop", "input")


def run(folder: Path, strategy: str, script: str, *arguments: str) -> tuple[int, list[dict[str, Any]]]:
    """Run a job to its end; return its code, and the events in which somebody has failed."""
    command = [sys.executable, "-m", "tfdist", "run", "--max-restarts", "1", "--event-file", str(folder / "events")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TFDIST_", "TF_CONFIG"))}
    environ = {**kept, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONPATH": python_path(ROOT)}
    command += [*FLAGS[strategy], str(CASES / script), *arguments]
    code = subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=False).returncode
    events = [json.loads(line) for line in (folder / "events").read_text().splitlines()]
    return code, [event for event in events if event["event"] == "failed"]


def linger(strategy: str, seconds: float, who: str) -> bool:
    """Linger everywhere; return whether nobody was blamed."""
    with tempfile.TemporaryDirectory(prefix="tfdist-soak-") as name:
        began = time.monotonic()
        code, failed = run(Path(name), strategy, "lingering.py", name, str(seconds), who)
        places = [len(json.loads(path.read_text())["places"]) for path in Path(name).glob("places *")]
    minutes = (time.monotonic() - began) / 60
    print(
        f"{strategy}, {who} lingering: {places} places, {len(failed)} alarms, code {code}, {minutes:.0f} min",
        flush=True,
    )
    return code == 0 and not failed


def hang(strategy: str, kind: str) -> bool:
    """Let a worker get stuck; return whether that was found, and the job healed."""
    with tempfile.TemporaryDirectory(prefix="tfdist-soak-") as name:
        code, failed = run(Path(name), strategy, "stuck.py", kind, "1" if "-n" in FLAGS[strategy] else "0", name)
        began = float(Path(name, "stuck").read_text())
    found = [f"{one['clock'] - began:.1f} s ({one['text']})" for one in failed]
    print(f"{strategy}, {kind}: found after {', '.join(found) or 'nothing was'}; code {code}", flush=True)
    return code == 0 and len(failed) == 1


def main() -> None:
    """Run the chosen cases, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="in each place")
    parser.add_argument("--strategy", choices=list(FLAGS), action="append", help="this one alone; may be repeated")
    parser.add_argument("--hangs", action="store_true", help="true hangs instead")
    options = parser.parse_args()
    good = []
    for strategy in options.strategy or FLAGS:
        if not options.hangs:
            several = strategy in ("multi-worker", "ring")
            good += [linger(strategy, options.seconds, who) for who in (("all", "0") if several else ("all",))]
        elif strategy != "parameter-server":  # whose hangs are those of a chief: see `tfdist chaos`
            good += [hang(strategy, kind) for kind in KINDS]
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
