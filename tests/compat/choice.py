"""The tests of each pair of versions: private names, and the matrix's features that depend on them most.

Each feature is here because it takes another way through `tfdist.compat`, not for its numbers alone. The whole matrix
is `tfdist verify`, in the same environment.
"""

from dataclasses import dataclass

TEST = "tests/integration/test_compat.py"


@dataclass(frozen=True)
class Column:
    """Features of the matrix that are run under one of its columns.

    Args:
        name: of the column.
        features: names of rows.
        needs_horovod: whether it is run only where Horovod has been built beside the pair.
    """

    name: str
    features: tuple[str, ...]
    needs_horovod: bool = False


COLUMNS = (
    Column(
        "mirrored-2",
        (
            *("partial_batch", "optional_inputs", "tf_data_of_unknown_size"),  # how batches are cut
            *("evaluate", "predict", "steps_per_execution"),  # the loops of fit and its kin
            *("optimizer_adam", "ema_overwrite", "gradient_accumulation", "global_clipnorm", "accumulate_steps"),
            *("sparse_gradients_clipped", "shared_table_of_any_length"),  # rows of a gradient, and whose they are
            *("masked_sequences", "sync_batch_norm_partial", "dropout", "logs_made_of_metrics"),
            # steps of one's own, and what a trial finds out
            *("train_step_of_the_guide", "sums_in_a_step", "generative_adversarial_network"),
            *("mixed_float16", "loss_scale_bad_replica"),
            *("backup_and_restore", "save_and_load"),
        ),
    ),
    Column(
        "multi-worker-2x1",
        (
            *("partial_batch", "evaluate", "predict", "global_clipnorm", "sparse_gradients_clipped"),
            *("sync_batch_norm_partial", "train_step_of_the_guide", "loss_scale_bad_replica"),
            *("checkpoint_keras", "backup_and_restore", "seeds_differ", "data_differs", "auto_shard_file"),
        ),
    ),
    Column(
        "parameter-server-2",
        (
            *("partial_batch", "evaluate", "predict", "global_clipnorm", "sparse_gradients_clipped"),
            *("train_step_of_the_guide", "loss_scale_bad_replica", "checkpoint_keras", "backup_and_restore"),
        ),
    ),
    Column(
        "ring-2",
        (
            *("partial_batch", "evaluate", "predict", "global_clipnorm", "sparse_gradients_clipped"),
            *("sync_batch_norm_partial", "loss_scale_bad_replica", "backup_and_restore"),
        ),
        needs_horovod=True,
    ),
)
