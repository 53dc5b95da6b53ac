"""The schedules by name, each a function of the numbers of stages, micro-batches and chunks.

Sources: Y. Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", 2019;
D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", 2019; D. Narayanan et al.,
"Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", 2021 (1F1B with a flush,
interleaved); Y. Zhuang et al., "On Optimizing the Communication of Model Parallelism", 2023 (eager 1F1B); C.-C. Chen,
C.-L. Yang, H.-Y. Cheng, "Efficient and Robust Parallel DNN Training through Model Parallelism on Multi-GPU Platform"
(SpecTrain), 2018.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from tfdist import validation
from tfdist.errors import ConfigError
from tfdist.planner.schedules.schedule_table import Schedule, Work


def gpipe(stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return GPipe: all forward passes, then all backward passes, the last micro-batch first.

    With several chunks, all micro-batches go through one chunk after the other (J. Lamy-Poirier, "Breadth-First
    Pipeline Parallelism", 2022).
    """
    forwards = tuple(Work("forward", m, c) for c in range(chunks) for m in range(microbatches))
    backwards = tuple(work._replace(kind="backward") for work in reversed(forwards))
    return Schedule(
        name="gpipe",
        stages=stages,
        microbatches=microbatches,
        chunks=chunks,
        orders=(forwards + backwards,) * stages,
        live=(microbatches * chunks,) * stages,
    )


def one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Return 1F1B: stage s of K runs K - 1 - s forward passes ahead, then one backward after each forward."""
    return _flushed("1f1b", stages, microbatches, ahead=1)


def eager_one_f_one_b(stages: int, microbatches: int) -> Schedule:
    """Return eager 1F1B: 1F1B with 2 (K - 1 - s) forward passes ahead.

    In 1F1B a stage needs each gradient the moment the next stage has it, so every message delays all stages. Here each
    gradient arrives a forward pass early.
    """
    return _flushed("eager-1f1b", stages, microbatches, ahead=2)


def interleaved(stages: int, microbatches: int, chunks: int) -> Schedule:
    """Return interleaved 1F1B: 1F1B with several chunks per stage, for shorter bubbles.

    Micro-batches go through the first chunks in groups as large as the number of stages, then through the second ones.
    """
    if microbatches % stages:
        raise ConfigError(
            f"microbatches is {microbatches} and stages is {stages}; interleaved micro-batches go in groups of as many "
            f"as there are stages. Take a multiple of {stages}.",
            name="microbatches",
            received=microbatches,
        )
    groups = [range(first, first + stages) for first in range(0, microbatches, stages)]
    forwards = [Work("forward", m, c) for group in groups for c in range(chunks) for m in group]
    backwards = [Work("backward", m, c) for group in groups for c in reversed(range(chunks)) for m in group]
    total = microbatches * chunks
    each = 1 if chunks == 1 else 2
    ahead = [each * (stages - 1 - stage) + (chunks - 1) * stages for stage in range(stages)]
    return Schedule(
        name="interleaved",
        stages=stages,
        microbatches=microbatches,
        chunks=chunks,
        orders=tuple(_alternating(forwards, backwards, first) for first in ahead),
        live=tuple(min(total, first + 1) for first in ahead),
    )


def pipedream(stages: int, microbatches: int) -> Schedule:
    """Return PipeDream: 1F1B with an update after each backward pass, which uses its forward pass's weights."""
    order = one_f_one_b(stages, microbatches)
    return replace(order, name="pipedream", updates_each=True, weights="stashed")


def spectrain(stages: int, microbatches: int) -> Schedule:
    """Return SpecTrain: the order of PipeDream with predicted weights, and no stash."""
    order = one_f_one_b(stages, microbatches)
    return replace(order, name="spectrain", updates_each=True, weights="predicted")


_MADE: Mapping[str, Callable[..., Schedule]] = MappingProxyType(
    {
        "gpipe": gpipe,
        "1f1b": one_f_one_b,
        "eager-1f1b": eager_one_f_one_b,
        "interleaved": interleaved,
        "pipedream": pipedream,
        "spectrain": spectrain,
    }
)
#: the names of the schedules
NAMES = tuple(_MADE)


def named(name: str, *, stages: int, microbatches: int, chunks: int = 1) -> Schedule:
    """Return a schedule by its name.

    Args:
        name: the name, one of `NAMES`.
        stages: the number of stages, K.
        microbatches: the number of parts into which a batch is cut, M.
        chunks: the number of parts of the model on each stage; only "gpipe" and "interleaved" take more than one.
    Raises:
        ConfigError: there is no such schedule, or it does not exist for these numbers.

    Example:
        >>> [" ".join(map(str, order)) for order in named("gpipe", stages=2, microbatches=2).orders]
        ['F0 F1 B1 B0', 'F0 F1 B1 B0']
    """
    validation.one_of("schedule", name, NAMES)
    validation.integer("stages", stages, minimum=1)
    validation.integer("microbatches", microbatches, minimum=1)
    validation.integer("chunks", chunks, minimum=1)
    if name in ("gpipe", "interleaved"):
        return _MADE[name](stages, microbatches, chunks)
    if chunks > 1:
        raise ConfigError(
            f"chunks is {chunks} and schedule is {name!r}; a stage with several parts of the model is what "
            "'interleaved' and 'gpipe' are for. Leave chunks out, or choose one of these.",
            name="chunks",
            received=chunks,
        )
    return _MADE[name](stages, microbatches)


def _flushed(name: str, stages: int, microbatches: int, ahead: int) -> Schedule:
    """Return 1F1B in which each stage runs ``ahead`` more forward passes before its first backward than the next."""
    forwards = [Work("forward", m) for m in range(microbatches)]
    backwards = [Work("backward", m) for m in range(microbatches)]
    firsts = [ahead * (stages - 1 - stage) for stage in range(stages)]
    return Schedule(
        name=name,
        stages=stages,
        microbatches=microbatches,
        orders=tuple(_alternating(forwards, backwards, first) for first in firsts),
        live=tuple(min(microbatches, first + 1) for first in firsts),
    )


def _alternating(forwards: list[Work], backwards: list[Work], ahead: int) -> tuple[Work, ...]:
    order, left = list(forwards[:ahead]), list(backwards)
    for forward in forwards[ahead:]:
        order += [forward, left.pop(0)]
    return (*order, *left)
