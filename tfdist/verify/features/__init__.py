"""The matrix's features, one file per subject. `ORDER` is the order of the table; every file is in it."""

ORDER = (
    "batches",
    "inputs",
    "optimizers",
    "losses",
    "metrics",
    "layers",
    "loops",
    "precision",
    "distributed",
    "calls",
    "callbacks",
    "saving",
    "workers",
)
