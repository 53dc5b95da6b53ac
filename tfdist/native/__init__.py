"""Code that is compiled on its first use, mostly TensorFlow ops; importing this package loads no TensorFlow."""

from tfdist.native.ops import Records, records
from tfdist.native.row_solver import RowSolver, row_solver

__all__ = ["Records", "RowSolver", "records", "row_solver"]
