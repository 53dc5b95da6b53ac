"""The equivalence matrix: every Keras feature, under every strategy, gives the numbers of one device.

Example:
    >>> from tfdist import verify
    >>> report = verify.run(verify.feature.select(["even"]), verify.column.select(["mirrored-2"]))  # doctest: +SKIP
    >>> print(report.to_markdown())                                                                  # doctest: +SKIP
"""

from tfdist.verify import column as column
from tfdist.verify import feature as feature
from tfdist.verify.column import COLUMNS as COLUMNS
from tfdist.verify.column import Column as Column
from tfdist.verify.report import Cell as Cell
from tfdist.verify.report import Report as Report
from tfdist.verify.runner import run as run
