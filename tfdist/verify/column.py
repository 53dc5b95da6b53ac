"""The columns of the matrix, each a strategy with a number of processes and replicas, written in one line."""

import fnmatch
from collections.abc import Iterable
from dataclasses import dataclass

from tfdist.cluster import strategy_table
from tfdist.cluster.mesh import Mesh
from tfdist.errors import ConfigError
from tfdist.validation import integer, nearest
from tfdist.variables import (
    COLLECTIVES,
    LAYOUTS,
    LOCAL_SERVERS,
    MAX_STALENESS,
    MESH,
    MICROBATCHES,
    SCHEDULE,
    SHARDING_STAGE,
)


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column: one strategy on this machine's CPU.

    Attributes:
        name: the name in the table.
        strategy: the registered name of the strategy, see `tfdist.cluster.strategy_table`.
        workers: the number of processes that run the script, at least 1.
        replicas_per_worker: the number of replicas in each process, at least 1; for a chief, the number of its workers.
        variables: environment variables, on top of those that `tfdist run` sets.
        may_refuse: the names of features for which a clear refusal is as good as equal numbers here.

    Example:
        >>> Column(name="mirrored-2", strategy="mirrored", replicas_per_worker=2).replicas
        2
    """

    name: str
    strategy: str
    workers: int = 1
    replicas_per_worker: int = 1
    variables: tuple[tuple[str, str], ...] = ()
    may_refuse: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        integer("workers", self.workers, minimum=1)
        integer("replicas_per_worker", self.replicas_per_worker, minimum=1)
        if strategy_table.get(self.strategy).processes != "workers" and self.workers > 1:
            raise ConfigError(
                f"column {self.name!r}: {self.strategy!r} runs in one process, not in {self.workers}.",
                name="workers",
                received=self.workers,
            )

    @property
    def replicas(self) -> int:
        """The number of replicas over all workers; on a mesh, only those along its first axis.

        A micro-batch counts as one: it has statistics and random numbers of its own.
        """
        given = dict(self.variables)
        if not (mesh := MESH.read(given)):
            return self.workers * self.replicas_per_worker
        return Mesh.parse(mesh).shape[0] * (MICROBATCHES.read(given) or 1)


#: impossible with sharded weights: what the chief or Keras saves alone, and programs of XLA, which cannot gather
_REFUSED_WITHOUT_WHOLES = (
    *("only_chief_writes", "backup_and_restore"),
    *("jit_compile", "jit_compile_own_step", "positions_under_xla", "first_step_builds_every_optimizer_under_xla"),
    # steps that use whole gradients
    *("norms_in_a_step", "sharpness_aware_minimization", "adversaries_that_clip"),
)
#: updates that use whole weights, which a process of a pipeline has of its own stage only
_LOOK_AT_WHOLE_WEIGHTS = (
    *("optimizer_schedule_free_adamw", "optimizer_lamb", "optimizer_muon"),
    *("optimizer_of_ones_own", "lars", "lamb"),
)
#: on a mesh also these, compressed gradients, and data that differ between processes with the same examples
_REFUSED_ON_A_MESH = (
    *_REFUSED_WITHOUT_WHOLES,
    *_LOOK_AT_WHOLE_WEIGHTS,
    *("optimizer_adafactor", "first_step_builds_every_optimizer"),
    *("compression_float16", "compression_bfloat16", "own_data_uneven", "auto_shard_file"),
)

#: with parts on devices of one process also replicas that run one after the other
_REFUSED_ON_DEVICES = (*_REFUSED_ON_A_MESH, "run_eagerly")
#: in a pipeline also steps of the user's own, and models without a graph
_REFUSED_IN_A_PIPELINE = (
    *(name for name in _REFUSED_ON_A_MESH if name not in _LOOK_AT_WHOLE_WEIGHTS),
    # steps, losses and graphs of the user's own
    *("compute_loss", "compute_loss_that_sums", "logs_under_other_names", "logs_made_of_metrics"),
    *("metrics_of_compute_metrics", "train_step_of_the_guide", "train_step_with_compute_loss"),
    *("variational_autoencoder", "generative_adversarial_network", "gradient_penalty", "gradient_of_a_vector"),
    *("sums_in_a_step", "synchronized_normalization", "gan_with_clipped_weights", "one_optimizer_twice"),
    *(
        "scaled_optimizer_twice",
        "two_updates_of_one_tape",
        "weights_after_the_update",
        "positions_in_a_step_of_ones_own",
    ),
    *("function_that_sums", "function_that_averages", "run_eagerly", "gathered_candidates"),
    *("string_passed_through", "reduction_none", "sparse_inputs", "positions_of_ragged_texts", "states_of_layers"),
    # what looks at whole gradients
    *("adasum", "compression_random_k_of_all", "compression_power_sgd_of_full_rank", "compression_dgc_of_all"),
)
# what layers of the user's add to the loss or keep, of which no stage can try how replicas put it together
_REFUSED_IN_REPLICAS_OF_A_PIPELINE = ("add_loss", "added_losses", "codebook")

COLUMNS = (
    Column(name="mirrored-2", strategy="mirrored", replicas_per_worker=2),
    Column(name="mirrored-3", strategy="mirrored", replicas_per_worker=3),
    Column(
        name="mirrored-native-2", strategy="mirrored", replicas_per_worker=2, variables=((COLLECTIVES.name, "native"),)
    ),
    *(
        Column(
            name=name,
            strategy="multi-worker",
            workers=2,
            replicas_per_worker=replicas,
            variables=((COLLECTIVES.name, collectives),),
        )
        for name, replicas, collectives in (
            ("multi-worker-2x1", 1, "tensorflow"),
            ("multi-worker-2x2", 2, "tensorflow"),
            ("multi-worker-native-2", 1, "native"),
            ("multi-worker-native-2x2", 2, "native"),
            ("multi-worker-horovod-2", 1, "horovod"),
        )
    ),
    *(
        Column(
            name=name,
            strategy="sharded-data-parallel",
            workers=workers,
            variables=((SHARDING_STAGE.name, str(stage)), (COLLECTIVES.name, "native")),
            may_refuse=_REFUSED_WITHOUT_WHOLES if stage == 3 else (),
        )
        for name, stage, workers in (
            ("sharded-1", 1, 2),
            ("sharded-2", 2, 3),
            ("sharded-3", 3, 2),
            ("sharded-1-workers-3", 1, 3),
            ("sharded-2-workers-2", 2, 2),
            ("sharded-3-workers-3", 3, 3),
        )
    ),
    Column(name="ring-2", strategy="ring", workers=2),
    Column(name="ring-3", strategy="ring", workers=3),
    Column(name="ring-2x2", strategy="ring", workers=2, replicas_per_worker=2),
    *(
        Column(
            name=f"parameter-server-{workers}",
            strategy="parameter-server",
            replicas_per_worker=workers,
            variables=((MAX_STALENESS.name, "0"), (LOCAL_SERVERS.name, "2")),
            may_refuse=("uneven_shares", "uneven_shares_of_readings"),
        )
        for workers in (2, 3)
    ),
    *(
        Column(
            name=f"model-parallel-{batch}x{model}{'' if devices == 1 else '-devices'}",
            strategy="model-parallel",
            workers=batch * model // devices,
            replicas_per_worker=devices,
            variables=((MESH.name, f"batch={batch},model={model}"), (LAYOUTS.name, "auto")),
            may_refuse=_REFUSED_ON_A_MESH if devices == 1 else _REFUSED_ON_DEVICES,
        )
        for batch, model, devices in ((1, 2, 1), (2, 2, 1), (1, 2, 2), (2, 2, 4))
    ),
    *(
        Column(
            name=name,
            strategy="pipeline",
            workers=Mesh.parse(mesh).size,
            variables=((MESH.name, mesh), (SCHEDULE.name, schedule), (MICROBATCHES.name, "2"), *more),
            # slots or weights of a stage in parts
            may_refuse=(
                *_REFUSED_IN_A_PIPELINE,
                *(_LOOK_AT_WHOLE_WEIGHTS if more else ()),
                *(_REFUSED_IN_REPLICAS_OF_A_PIPELINE if mesh.startswith("data=2") else ()),
            ),
        )
        for name, mesh, schedule, more in (
            ("pipeline-2", "data=1,pipeline=2", "1f1b", ()),
            ("pipeline-3", "data=1,pipeline=3", "gpipe", ()),
            ("pipeline-2x2", "data=2,pipeline=2", "1f1b", ()),
            ("pipeline-2x2-sharded", "data=2,pipeline=2", "1f1b", ((SHARDING_STAGE.name, "1"),)),
            ("pipeline-1x2x2", "data=1,pipeline=2,model=2", "1f1b", ((LAYOUTS.name, "auto"),)),
        )
    ),
)


def select(patterns: Iterable[str]) -> tuple[Column, ...]:
    """Return the columns that names of strategies or columns, or globs, select; all of them without patterns.

    Raises:
        ConfigError: a pattern names no column.

    Example:
        >>> [column.name for column in select(["mirrored"])]
        ['mirrored-2', 'mirrored-3', 'mirrored-native-2']
    """
    patterns = tuple(patterns)
    names = [column.name for column in COLUMNS]
    for pattern in patterns:
        if not any(_matches(column, pattern) for column in COLUMNS):
            meant = nearest(pattern, [*names, *strategy_table.names()])
            raise ConfigError(
                f"no column is named {pattern!r}.{meant} Choose a strategy ({', '.join(strategy_table.names())}), a "
                f"column ({', '.join(names)}) or a glob such as 'multi-worker-*'.",
                name="--strategy",
                received=pattern,
            )
    return tuple(c for c in COLUMNS if not patterns or any(_matches(c, pattern) for pattern in patterns))


def _matches(column: Column, pattern: str) -> bool:
    return column.strategy == pattern or fnmatch.fnmatchcase(column.name, pattern)
