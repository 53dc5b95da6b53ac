"""Diagnosis of this machine: what it has, what works, what is missing, and the fix; loads no TensorFlow itself.

Each file covers one subject: a function observes, and a pure function judges what was observed.

Example:
    >>> findings = examine([Check("always", lambda: [])])
    >>> worst(findings).name
    'OK'
"""

from tfdist.doctor.examine import Check, examine, standard_checks
from tfdist.doctor.finding import Finding, Level, as_report, worst

__all__ = ["Check", "Finding", "Level", "as_report", "examine", "standard_checks", "worst"]
