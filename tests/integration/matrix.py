"""Which cells of the matrix the tests run: every row once, and all strategies for rows that depend on replicas.

`make verify` runs all rows in all columns. What the tests run of it is chosen so that every row is trained under some
strategy, every strategy trains rows of every kind, and rows whose numbers depend on how many replicas there are, and on
how they are divided into processes, are trained with three or four replicas too: those that depend on it most under
every strategy, the others in one process and in several.
"""

import itertools

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
    *("multi-worker-2x1", "ring-2", "multi-worker-native-2", "mirrored-native-2", "multi-worker-horovod-2"),
    *("model-parallel-1x2", "pipeline-2", "sharded-3", "parameter-server-2", "model-parallel-1x2-devices"),
)
TURNS = tuple(name for other in OTHERS for name in (other, "mirrored-2", "mirrored-2"))
# of each of these a file of tests, which processes share out
FILES = (
    ("mirrored-2", "mirrored-native-2", "model-parallel-1x2-devices"),
    ("multi-worker-2x1", "multi-worker-native-2", "parameter-server-2", "model-parallel-1x2"),
    ("ring-2", "multi-worker-horovod-2", "sharded-3", "pipeline-2"),
)
SEVERAL_WORKERS = ("multi-worker-2x1", "ring-2", "multi-worker-native-2", "multi-worker-horovod-2", "sharded-3")
# in which of the columns of `NUMBERS` a row is trained: in all, or in one of one process and one of several
EVERYWHERE = (
    *("partial_batch", "empty_replicas", "sync_batch_norm_partial"),
    *("own_data_uneven", "generators_differ", "one_worker_stops"),
)
IN_TURN = {
    ("mirrored-3", "ring-3", "sharded-2"): (
        *("accumulation_with_clipping", "dropout", "generative_adversarial_network", "predict"),
    ),
    ("parameter-server-2", "multi-worker-2x2", "model-parallel-2x2"): (
        *("loss_scale_bad_replica", "accumulation_in_float16_with_a_bad_replica", "sparse_gradients_clipped"),
        "function_that_sums",
    ),
}
NUMBERS = column.select(
    ["mirrored-3", "multi-worker-2x2", "sharded-2", "ring-3", "parameter-server-2", "model-parallel-2x2"]
)


def numbered() -> dict[tuple[Column, ...], tuple[Feature, ...]]:
    """Return the rows that run in columns of `NUMBERS`, by those."""
    found = {NUMBERS: feature.select(EVERYWHERE)}
    return found | {column.select(names): feature.select(rows) for names, rows in IN_TURN.items()}


def shares() -> dict[str, tuple[Feature, ...]]:
    """Return the rows of each column in which the others take turns; those about workers need several of them."""
    turns, workers = itertools.cycle(TURNS), itertools.cycle(SEVERAL_WORKERS)
    found: dict[str, list[Feature]] = {name: [] for name in TURNS}
    elsewhere = {row.name for rows in numbered().values() for row in rows}
    for entry in feature.features().values():
        if entry.name not in elsewhere:
            found[next(workers if entry.min_workers > 1 else turns)].append(entry)
    return {name: tuple(rows) for name, rows in found.items()}


def run(rows: tuple[Feature, ...], columns: tuple[Column, ...], forking: Forks, *, optimized: bool = True) -> Report:
    """Run rows in columns, in processes that are forked, which a user's are not; graphs are optimized or not."""
    with pytest.MonkeyPatch.context() as patch, forking.for_pools():
        patch.setenv("PYTHONPATH", python_path())
        patch.setenv(OPTIMIZED, "1" if optimized else "")
        return verify.run(rows, columns, deadline_seconds=CELL_SECONDS)


def require_the_numbers_of_one_device(report: Report, one: Column) -> None:
    """Fail on the cells of a column that are neither green nor a refusal, with what each has instead."""
    cells = {cell.feature: cell for cell in report.cells if cell.column == one.name}
    assert cells.keys() == report.features.keys()
    bad = [f"{cell.feature}: {cell.text}\n    {cell.detail[:400]}" for cell in cells.values() if cell.is_bad]
    assert not bad, "\n".join(bad)
    trained = [cell for cell in cells.values() if feature.features()[cell.feature].applies(one)]
    green = sum(cell.status == "green" for cell in trained)
    assert green > len(trained) / 2, "most are refused"


def require_its_share(name: str, forking: Forks) -> None:
    """Run a column's share of the rows."""
    (one,) = column.select([name])
    require_the_numbers_of_one_device(run(shares()[name], (one,), forking), one)
