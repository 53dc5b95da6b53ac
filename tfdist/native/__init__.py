"""Code that is compiled on its first use, mostly TensorFlow ops; importing this package loads no TensorFlow."""

from tfdist.native.ops import Records, records
from tfdist.native.solved_rows import RowSolver, row_solver

__all__ = ["Records", "RowSolver", "records", "row_solver"]
