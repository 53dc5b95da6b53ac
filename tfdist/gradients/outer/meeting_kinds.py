"""The kinds of meetings, one for each schedule."""

import keras

from tfdist.gradients.outer import meeting_schedules, outer_steps
from tfdist.gradients.outer.meeting_schedules import (
    DiLoCo,
    ElasticAveraging,
    Gossip,
    LocalSGD,
    PostLocalSGD,
    Synchronization,
)
from tfdist.gradients.outer.meetings import Averaging, Group, Meeting
from tfdist.gradients.outer.mixing_steps import Neighbours, Springs
from tfdist.gradients.outer.outer_steps import OuterSteps

_KINDS: dict[type[Synchronization], type[Meeting]] = {
    LocalSGD: Averaging,
    PostLocalSGD: Averaging,
    DiLoCo: OuterSteps,
    ElasticAveraging: Springs,
    Gossip: Neighbours,
}


def meeting_of(schedule: Synchronization, group: Group, model: keras.Model) -> Meeting:
    return _KINDS[type(schedule)](schedule, group, model)


def require(value: object) -> Synchronization | None:
    """Return the schedule that a strategy is given, with the codec that it names looked up."""
    schedule = meeting_schedules.require(value)
    if isinstance(schedule, DiLoCo):
        outer_steps.codec_of(schedule.wire)
    return schedule
