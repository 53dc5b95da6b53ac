"""The equivalence matrix: every Keras feature, under every strategy, gives the numbers of one device.

Example:
    >>> from tfdist import verify
    >>> report = verify.run(verify.feature.select(["even"]), verify.column.select(["mirrored-2"]))  # doctest: +SKIP
    >>> print(report.to_markdown())                                                                  # doctest: +SKIP
"""

from tfdist.verify import column, feature
from tfdist.verify.column import COLUMNS, Column
from tfdist.verify.matrix_report import Cell, Report
from tfdist.verify.runner import run

__all__ = ["COLUMNS", "Cell", "Column", "Report", "column", "feature", "run"]
