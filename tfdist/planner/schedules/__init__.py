"""Schedules of pipelines as values: the order of the work of each stage; pure, without TensorFlow.

Example:
    >>> from tfdist.parallel import schedules
    >>> made = schedules.named("1f1b", stages=2, microbatches=3)
    >>> [str(work) for work in made.orders[0]]
    ['F0', 'F1', 'B0', 'F2', 'B1', 'B2']
    >>> schedules.bubble(made)
    0.25
"""

from tfdist.planner.schedules.schedule_orders import NAMES, named
from tfdist.planner.schedules.schedule_table import Schedule, Work
from tfdist.planner.schedules.schedule_timeline import Timeline, bubble, require_sound, timeline

__all__ = ["NAMES", "Schedule", "Timeline", "Work", "bubble", "named", "require_sound", "timeline"]
