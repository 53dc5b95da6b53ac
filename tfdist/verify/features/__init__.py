"""The matrix's features, one file per group. `ORDER` is the order of the table; every file is in it."""

ORDER = (
    "data.batches_features",
    "data.inputs_features",
    "optimization.optimizers_features",
    "model.lookups_features",
    "model.losses_features",
    "model.metrics_features",
    "model.layers_features",
    "model.batch_wide_features",
    "steps.loops_features",
    "steps.own_steps_features",
    "steps.updates_features",
    "steps.exchanges_features",
    "steps.first_steps",
    "optimization.precision_features",
    "optimization.distributed_features",
    "optimization.compression_features",
    "fit.calls_features",
    "fit.callbacks_features",
    "fit.saving_features",
    "data.workers_features",
)
