"""The cells of the matrix that the tests run: every row once, and all strategies for rows that depend on replicas.

`make verify` runs all rows in all columns. The tests train every row under some strategy, and rows of every kind under
each strategy. The numbers of some rows depend on the number of replicas, and on their division into processes. These
rows are trained with three or four replicas too, in the columns that differ in either.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.integration.forks import OPTIMIZED, Forks
from tests.integration.light import python_path
from tfdist import verify
from tfdist.verify import Column, Report, column, feature
from tfdist.verify.feature import Feature

DEADLINE_SECONDS = 1800
CELL_SECONDS = 600.0  # a feature's own deadline is for a machine that does nothing else
# rows take turns: two of three run where a cell is cheapest, in one process, the third under the other strategies
OTHERS = (
    *("mirrored-native-2", "multi-worker-horovod-2", "model-parallel-1x2", "pipeline-2", "sharded-3"),
    *("parameter-server-2", "model-parallel-1x2-devices", "multi-worker-2x1", "ring-2", "multi-worker-native-2"),
)
CHEAPEST = "mirrored-2"
TURNS = tuple(name for other in OTHERS for name in (other, CHEAPEST, CHEAPEST))
# its share is run in parts, so that no test takes minutes more than all others; a part is named after a colon
PARTS = 5
# of each of these a file of tests, which processes share out
FILES = (
    ("mirrored-2:0", "mirrored-2:1", "mirrored-2:2"),
    ("mirrored-2:3", "mirrored-2:4", "mirrored-native-2", "model-parallel-1x2-devices"),
    ("multi-worker-2x1", "multi-worker-native-2", "parameter-server-2", "model-parallel-1x2"),
    ("ring-2", "multi-worker-horovod-2", "sharded-3", "pipeline-2"),
)
SEVERAL_WORKERS = ("multi-worker-2x1", "ring-2", "multi-worker-native-2", "multi-worker-horovod-2", "sharded-3")
# Rows that depend on the number of replicas, and where each is trained. No column trains the same twice: a batch with
# one example leaves replicas empty, as one with two does where there are more, and accumulation in float16 scales the
# loss. All about workers is tried in two columns, in one of which or in `FURTHER` on the mesh, whose workers read the
# same in groups.
IN_ONE, IN_SEVERAL = ("mirrored-3", "parameter-server-2"), ("multi-worker-2x2", "sharded-2", "ring-3")
MESH = "model-parallel-2x2"
NUMBERED: dict[str, tuple[str, ...]] = {
    "partial_batch": ("mirrored-3", "sharded-2"),
    "empty_replicas": ("multi-worker-2x2", "ring-3"),
    "sync_batch_norm_partial": ("mirrored-3", "ring-3"),
    "own_data_uneven": ("multi-worker-2x2", MESH),
    "generators_differ": ("ring-3", MESH),
    "one_worker_stops": ("multi-worker-2x2", MESH),
    "accumulation_with_clipping": ("mirrored-3", "sharded-2"),
    "dropout": ("mirrored-3", "ring-3"),
    "generative_adversarial_network": ("mirrored-3", "ring-3"),
    "predict": ("mirrored-3", "sharded-2"),
    "shuffle_once_each": ("mirrored-3", "sharded-2"),
    "loss_scale_bad_replica": ("parameter-server-2", "multi-worker-2x2"),
    "accumulation_in_float16_with_a_bad_replica": ("multi-worker-2x2", MESH),
    "sparse_gradients_clipped": ("parameter-server-2", "multi-worker-2x2"),
    "gathered_candidates": ("mirrored-3", MESH),
    "norms_in_a_step": ("parameter-server-2", "sharded-2"),
    "function_that_sums": ("parameter-server-2", "multi-worker-2x2"),
}
# One more column of what is trained in others already: before a release.
FURTHER: dict[str, tuple[str, ...]] = {
    "partial_batch": ("parameter-server-2",),
    "empty_replicas": (MESH,),
    "sync_batch_norm_partial": ("parameter-server-2", MESH),
    "own_data_uneven": ("ring-3",),
    "generators_differ": ("sharded-2",),
    "one_worker_stops": ("sharded-2",),
    "sparse_gradients_clipped": (MESH,),
    "gathered_candidates": ("multi-worker-2x2", "ring-3"),
    "norms_in_a_step": ("mirrored-3",),
}
NUMBERS = column.select([*IN_ONE, *IN_SEVERAL, MESH])


@dataclass(frozen=True, kw_only=True)
class Numbered(Feature):
    """A row that is trained in some columns alone."""

    columns: tuple[str, ...]

    def applies(self, column: Column) -> bool:
        """Return whether it is trained there."""
        return column.name in self.columns and super().applies(column)


def numbered(columns: Mapping[str, tuple[str, ...]] = NUMBERED) -> tuple[Numbered, ...]:
    """Return the rows of `NUMBERED`, or of `FURTHER`."""
    return tuple(Numbered(**vars(row), columns=columns[row.name]) for row in feature.select(columns))


def shares() -> dict[str, tuple[Feature, ...]]:
    """Return the rows of each column in which the others take turns; those about workers need several of them.

    Those of the cheapest column are in parts.
    """
    turns, workers = itertools.cycle(TURNS), itertools.cycle(SEVERAL_WORKERS)
    found: dict[str, list[Feature]] = {name: [] for name in TURNS}
    for entry in feature.features().values():
        if entry.name not in NUMBERED:
            found[next(workers if entry.min_workers > 1 else turns)].append(entry)
    every = found.pop(CHEAPEST)
    found |= {f"{CHEAPEST}:{part}": every[part::PARTS] for part in range(PARTS)}
    return {name: tuple(rows) for name, rows in found.items()}


def column_of(share: str) -> Column:
    """Return the column of a share or a part of one."""
    (one,) = column.select([share.partition(":")[0]])
    return one


def run(rows: tuple[Feature, ...], columns: tuple[Column, ...], forking: Forks, *, optimized: bool = True) -> Report:
    """Run rows in columns, in processes that are forked, which a user's are not; graphs are optimized or not."""
    with pytest.MonkeyPatch.context() as patch, forking.for_pools():
        patch.setenv("PYTHONPATH", python_path())
        patch.setenv(OPTIMIZED, "1" if optimized else "")
        return verify.run(rows, columns, deadline_seconds=CELL_SECONDS)


def require_the_numbers_of_one_device(report: Report, one: Column, rows: tuple[Feature, ...]) -> None:
    """Fail on the cells of a column that are neither green nor a refusal, with what each has instead."""
    cells = {cell.feature: cell for cell in report.cells if cell.column == one.name}
    assert cells.keys() == {row.name for row in rows}
    bad = [f"{cell.feature}: {cell.text}\n    {cell.detail[:400]}" for cell in cells.values() if cell.is_bad]
    assert not bad, "\n".join(bad)
    trained = [cells[row.name].status for row in rows if row.applies(one)]
    assert "left out" not in trained
    assert trained.count("green") > len(trained) / 2, "most are refused"


def require_its_share(name: str, forking: Forks) -> None:
    """Run a column's share of the rows; graphs are optimized in all but the largest, for a seventh of its time."""
    one, rows = column_of(name), shares()[name]
    require_the_numbers_of_one_device(run(rows, (one,), forking, optimized=one.name != CHEAPEST), one, rows)
