#!/usr/bin/env bash
# Finding: grain's samplers drop records although drop_remainder is False.
#
# Versions: grain 0.2.18, Python 3.11.
# Behaviour: ShardOptions(drop_remainder=False) divides 10 records over 4 shards as 3, 3, 2, 2, and even_split returns
# that. A DataLoader yields two from each shard all the same: the samplers end every shard at the length of the shortest.
# IndexSampler never yields records 2 and 5, SequentialSampler never yields 8 and 9. The records that are lost are the
# same in every epoch without shuffling. The sampler also decides who reads what: one cuts blocks, the other strides.
# Output seen: IndexSampler: [[0, 1], [3, 4], [6, 7], [8, 9]]; SequentialSampler: [[0, 4], [1, 5], [2, 6], [3, 7]]
# The script fails if that changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3.11 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check grain==0.2.18
cd "$folder"
"$folder/venv/bin/python" - <<'PROGRAM'
import grain.python as grain

EXPECTED = {
    "IndexSampler": [[0, 1], [3, 4], [6, 7], [8, 9]],
    "SequentialSampler": [[0, 4], [1, 5], [2, 6], [3, 7]],
}


def shards(sampler):
    """Return what each of four shards yields of the records 0 to 9."""
    options = [grain.ShardOptions(shard_index=index, shard_count=4, drop_remainder=False) for index in range(4)]
    return [list(grain.DataLoader(data_source=range(10), sampler=sampler(10, one), worker_count=0)) for one in options]


found = {
    "IndexSampler": shards(lambda n, one: grain.IndexSampler(n, shard_options=one, shuffle=False, num_epochs=1)),
    "SequentialSampler": shards(lambda n, one: grain.SequentialSampler(n, shard_options=one)),
}
print("; ".join(f"{name}: {lists}" for name, lists in found.items()))
assert found == EXPECTED, "the behaviour has changed"
PROGRAM
