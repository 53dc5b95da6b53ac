#!/usr/bin/env bash
# Finding: NumPy ignores zeros at the end of a list of seeds, so worker 0 draws what all workers share.
#
# Versions: NumPy 2.3.5, Python 3.11.
# Behaviour: `default_rng([seed, rank])` is a usual way to give each worker numbers of its own, beside
# `default_rng(seed)` for what all share. SeedSequence fills a short list with zeros up to four words, so [7], [7, 0],
# [7, 0, 0] and [7, 0, 0, 0] are one stream. Noise that worker 0 adds is then a copy of the numbers that initialized
# the weights: it is no noise, and only this worker has it. Lists are joined in words of 32 bits as well, so 7 + 2**32
# is [7, 1]. The rank before the seed, a seed of 128 bits, and `spawn` avoid it. Nothing is raised.
# Output seen: correlation of a shared stream [7] with [7, 0]: 1.00, with [7, 0, 0]: 1.00, with [7, 1]: 0.00,
# with [0, 7]: 0.00, with a spawned one: 0.00; 8 workers and the shared stream are 8 streams
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check numpy==2.3.5
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import numpy as np

SEED = 7


def drawn(seed):
    """Return the normal numbers that a seed gives."""
    return np.random.default_rng(seed).normal(size=100_000)


def related(seed):
    """Return the correlation of a seed's numbers with those of the shared stream."""
    return float(np.corrcoef(drawn(SEED), drawn(seed))[0, 1])


names = {"[7, 0]": [SEED, 0], "[7, 0, 0]": [SEED, 0, 0], "[7, 1]": [SEED, 1], "[0, 7]": [0, SEED]}
names["a spawned one"] = np.random.SeedSequence(SEED).spawn(1)[0]
found = {name: related(seed) for name, seed in names.items()}
streams = {drawn(seed).tobytes() for seed in [SEED, *([SEED, rank] for rank in range(8))]}
print("correlation of a shared stream [7] ", end="")
print(", ".join(f"with {name}: {abs(value):.2f}" for name, value in found.items()), end="")
print(f"; 8 workers and the shared stream are {len(streams)} streams")
same = [name for name, value in found.items() if value > 0.999]
assert same == ["[7, 0]", "[7, 0, 0]"] and len(streams) == 8, "the behaviour has changed"
assert all(abs(value) < 0.02 for name, value in found.items() if name not in same), "the behaviour has changed"
assert np.array_equal(drawn(SEED + 2**32), drawn([SEED, 1])), "the behaviour has changed"
assert not np.array_equal(drawn([SEED, 0, 0, 0, 0]), drawn(SEED)), "the behaviour has changed"
PROGRAM
