"""The plans for an existing model, and the pipeline stages that a profile recommends."""

import math
import os
from collections.abc import Callable
from typing import Any

import keras

from tfdist import validation
from tfdist.compat.keras.symbolic import nested_models
from tfdist.errors import ConfigError
from tfdist.parallel.partition import profile_model
from tfdist.planner import division_plans, stage_search
from tfdist.planner.device_kinds import DeviceKind
from tfdist.planner.layer_profile import Profile, read
from tfdist.planner.planner_link import Link
from tfdist.planner.stage_cost import Setting

#: the link between hosts if none is given: 10 Gbit/s and 50 us
DEFAULT_LINK = Link(latency_seconds=5e-5, bytes_per_second=1.25e9, is_direct=True)


def plan(
    model: keras.Model,
    batch: Any,
    *,
    devices: int,
    memory_bytes: float | None = None,
    link: Link = DEFAULT_LINK,
    profile: Profile | None = None,
    **options: Any,
) -> division_plans.Report:
    """Measure a model on this device, and return the possible plans for several such devices, the best first.

    The model is unchanged afterwards.

    Args:
        model: a Sequential or functional model, built and compiled.
        batch: the arrays of a step's batch over all devices: (x, y), (x, y, sample_weight) or x.
        devices: the number of devices.
        memory_bytes: the memory of each device for the model, in bytes; None for no limit.
        link: the link between devices; 10 Gbit/s between hosts by default.
        profile: a profile of the model, if it was measured before; the batch is then ignored.
        **options: ``schedule``, ``microbatches``, ``objective``, see `tfdist.parallel.partition.plans`.
    Returns:
        The report; its ``verdict()`` is a sentence, its ``best`` a plan.
    Raises:
        UnsupportedError: the model has no graph of layers.
        ConfigError: an argument has an invalid value.

    Example:
        >>> import numpy as np
        >>> inputs = keras.Input((4,))
        >>> model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Dense(8)(inputs)))
        >>> model.compile("adam", "mse")
        >>> report = plan(model, (np.ones((8, 4)), np.ones((8, 2))), devices=2, memory_bytes=1 << 30)
        >>> sorted(one.name for one in report.plans)
        ['data 2', 'data 2, sharded optimizer', 'one device', 'pipeline 2']
    """
    kind = DeviceKind(count=devices, memory_bytes=math.inf if memory_bytes is None else memory_bytes)
    if profile is None:
        profile_model.require_graph(model)
        rows = profile_model.rows_of(batch)
        sizes = [max(rows // divisor, 1) for divisor in (devices, 4 * devices)]
        profile = profile_model.profile(model, batch, batch_sizes=sizes)
    return division_plans.plans(profile, [kind], link, **options)


def stages_by(
    profile: Profile | str | os.PathLike[str],
    *,
    link: Link = DEFAULT_LINK,
    microbatches: int = 8,
    schedule: str = "1f1b",
    memory_bytes: float | None = None,
) -> Callable[[keras.Model, int], tuple[str, ...]]:
    """Return a function that chooses the layers with which the stages of a model begin, from measured costs.

    Pass the function as the argument ``stages`` of a pipeline. Every process needs the same profile: read it from a
    file; do not let each process measure its own.

    Args:
        profile: the profile of the model, or the file that `tfdist parallel plan --save-profile` wrote.
        link: the link between stages.
        microbatches: the number of micro-batches of the pipeline.
        schedule: the schedule of the pipeline.
        memory_bytes: the memory of each device, in bytes; None for no limit.
    Returns:
        A function of the model and of a number of stages, which returns the names of the layers that begin the second
        and later stages. It raises `ConfigError` if the profile is of another model, or no such stages fit.
    Raises:
        ConfigError: the file holds no profile.

    Example:
        >>> stages_by("costs.json")(model, 2)                           # doctest: +SKIP
        ('block_4',)
    """
    found = profile if isinstance(profile, Profile) else read(profile)

    def stages(model: keras.Model, parts: int) -> tuple[str, ...]:
        names = {call.name for call in nested_models.flattened(profile_model.require_graph(model)).calls}
        lost = [one.name for one in found.layers if one.may_begin_stage and one.name not in names]
        if lost:
            raise ConfigError(
                f"the profile of {found.model!r} has the layer {lost[0]!r}, which the model {model.name!r} has not. "
                "Profile this model, and give its layers names of their own (name=...)."
            )
        validation.integer("the number of stages", parts, minimum=1)
        kind = DeviceKind(count=parts, memory_bytes=math.inf if memory_bytes is None else memory_bytes)
        setting = Setting(
            profile=found, link=link, kinds=(kind,), schedule=schedule, microbatches=microbatches, replicas=1
        )
        chosen = stage_search.best_stages(setting)
        if chosen is None:
            raise ConfigError(
                f"the model {model.name!r} has no {parts} stages that fit, by its profile. Give more memory or fewer "
                f"stages; a stage may begin with {len(setting.begins())} of its layers."
            )
        return tuple(found.layers[one.begin].name for one in chosen[1:])

    return stages
