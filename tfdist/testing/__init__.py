"""What tests of distributed training need: functions run in real worker processes, under deadlines.

Example:
    >>> from tfdist.testing import pool
    >>> pool.WorkerPool.__name__
    'WorkerPool'
"""
