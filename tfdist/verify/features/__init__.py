"""The matrix's features, one file per group. `ORDER` is the order of the table; every file is in it."""

ORDER = (
    "data.batches",
    "data.inputs",
    "optimization.optimizers",
    "model.lookups",
    "model.losses",
    "model.metrics",
    "model.layers",
    "model.batch_wide",
    "steps.loops",
    "steps.own_steps",
    "steps.updates",
    "steps.exchanges",
    "steps.first_steps",
    "optimization.precision",
    "optimization.distributed",
    "optimization.compression",
    "fit.calls",
    "fit.callbacks",
    "fit.saving",
    "data.workers",
)
