"""Compare codecs: the accuracy on the test data after the same number of epochs, over several seeds.

python strategies/compression/compare.py                                   # half an hour on 2 cores
python strategies/compression/compare.py --data digits --seeds 2 --codec none --codec powersgd

Two replicas of one process: what a codec makes of gradients is the same on every strategy. A codec keeps the accuracy
if its mean is no further from that without compression than the seeds' own standard deviation there.
"""

import argparse
import json
import statistics
from pathlib import Path

import keras
import train

import tfdist
from tfdist.compression.registry import names

CODECS = ("none", "float16", "natural", "qsgd-8", "qsgd-4", "terngrad", "powersgd", "dgc", "topk", "onebit", "signsgd")


def table(data: str, found: dict[str, list[float]]) -> str:
    """Return the comparison as a table of Markdown."""
    plain = found["none"]
    own = statistics.stdev(plain) if len(plain) > 1 else 0.0
    lines = [f"| {data} | mean accuracy | standard deviation | difference to none | kept |", "|---|---|---|---|---|"]
    for codec, values in found.items():
        mean, deviation = statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0
        off = mean - statistics.mean(plain)
        lines.append(f"| {codec} | {mean:.4f} | {deviation:.4f} | {off:+.4f} | {'yes' if off >= -own else 'no'} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=train.DATA, action="append", help="default: both")
    parser.add_argument("--codec", choices=names(), action="append", metavar="NAME", help="repeatable; default: 11")
    parser.add_argument("--epochs", type=int, default=15, help="default: %(default)s")
    parser.add_argument("--seeds", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--output", type=Path, default=Path("runs", "compression"), help="default: %(default)s")
    options = parser.parse_args()
    tfdist.strategies.use_logical_cpus(2)
    strategy = tfdist.strategies.MirroredStrategy(["cpu:0", "cpu:1"])
    options.output.mkdir(parents=True, exist_ok=True)
    every: dict[str, dict[str, list[float]]] = {}
    for data in options.data or train.DATA:
        found = every.setdefault(data, {})
        for codec in dict.fromkeys(["none", *(options.codec or CODECS)]):
            for seed in range(options.seeds):
                keras.utils.clear_session()
                result = train.train(data, codec, strategy, epochs=options.epochs, seed=seed)
                found.setdefault(codec, []).append(result["accuracy"])
                print(f"{data} {codec} seed {seed}: {result['accuracy']:.4f}, loss {result['loss']:.4f}", flush=True)
            (options.output / "comparison.json").write_text(json.dumps(every, indent=2) + "\n", encoding="utf-8")
    for data, found in every.items():
        print(f"\n{table(data, found)}")
    print(f"\nwrote {options.output / 'comparison.json'}", flush=True)


if __name__ == "__main__":
    main()
