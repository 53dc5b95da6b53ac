"""The results of a search for other tools: a table in Parquet, one picture, and runs of TensorBoard and MLflow."""

import math
import os
import time
from pathlib import Path
from typing import Any

from tfdist.data.sources.tables import arrow_types
from tfdist.errors import MissingDependencyError
from tfdist.planner import plot_style
from tfdist.tune.search.search_history import WORST, Trial
from tfdist.tune.search.search_run import Search
from tfdist.tune.search.search_space import Choice, Parameter, Value

_MOST_CURVES = 400


def _missing(package: str, wanted: str, error: ImportError) -> MissingDependencyError:
    return MissingDependencyError(
        f"{package} cannot be imported ({error}). Install it: python -m pip install {wanted}", name=package
    )


def write_parquet(found: Search, path: Path) -> None:
    pyarrow = arrow_types.arrow()
    from pyarrow import parquet

    rows = found.table()
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    parquet.write_table(pyarrow.table(columns), path)


def _column(values: list[Any]) -> list[Any]:
    """Return values of one type: a parameter with numbers and texts becomes a column of texts."""
    kinds = {type(one) for one in values if one is not None}
    if kinds <= {int, float} or len(kinds) <= 1:
        return values
    return [None if one is None else str(one) for one in values]


def draw(found: Search, path: Path) -> None:
    """Draw parallel coordinates of the parameters beside the curves, both coloured by the best score."""
    figure = plot_style.figure_of(13, 5)
    left, right = figure.subplots(1, 2)
    trials = [one for one in found.history.trials.values() if one.best < WORST]
    trials.sort(key=lambda one: (-one.best, one.number))
    trials = trials[-_MOST_CURVES:]  # the best are drawn last
    colours = _colours(len(trials))
    known: dict[str, Parameter] = {}
    for one in trials:
        known |= {**one.declared, **found.settings.space}
    names = [name for name in known if any(name in one.values for one in trials)]
    for one, colour in zip(trials, colours, strict=True):
        heights = [_height(known[name], one.values[name]) if name in one.values else math.nan for name in names]
        left.plot(range(len(names)), heights, color=colour, linewidth=1)
        steps = sorted(one.scores)
        right.plot(
            steps, [found.history.value(one.scores[step]) for step in steps], color=colour, marker=".", linewidth=1
        )
    plot_style.plain(left)
    plot_style.plain(right)
    labels = [f"{name}\n{_ends(known[name])}" for name in names]
    left.set(xticks=range(len(names)), xticklabels=labels, yticks=[], title="parameters of the trials")
    for rung in sorted(found.history.rungs):
        right.axvline(rung, color="#cccccc", linewidth=0.8, zorder=0)
    right.set(xlabel="epochs", ylabel=found.settings.metric, title=f"{len(found.history.trials)} trials; yellow: best")
    figure.savefig(path, format="png")


def _colours(count: int) -> list[Any]:
    import matplotlib

    colour_map = matplotlib.colormaps["viridis"]
    return [colour_map(place / max(1, count - 1)) for place in range(count)]


def _height(parameter: Parameter, value: Value) -> float:
    """Return the position of a value between the ends of its parameter, from 0 to 1."""
    if isinstance(parameter, Choice):
        return (
            parameter.values.index(value) / max(1, len(parameter.values) - 1) if value in parameter.values else math.nan
        )
    ends = (parameter.low, parameter.high, float(value))
    low, high, here = map(math.log, ends) if parameter.is_log and min(ends) > 0 else ends
    return (here - low) / (high - low) if high > low else 0.5


def _ends(parameter: Parameter) -> str:
    if isinstance(parameter, Choice):
        return f"{parameter.values[0]} to {parameter.values[-1]}"
    return f"{parameter.low:g} to {parameter.high:g}"


def to_tensorboard(found: Search, folder: Path) -> None:
    """Write a TensorBoard run for each trial: the metric by epochs, and the parameters as text."""
    try:
        from tfdist.monitor.exporters.tensorboard_exporter import EventFile, scalar, text_summary
    except ImportError as error:
        raise _missing("tensorboard", "tensorboard", error) from error
    for one in found.history.trials.values():
        file = EventFile(folder / f"trial-{one.number:05}")
        file.add(0, time.time(), [text_summary("parameters", _listed(one))])
        for step, score in sorted(one.scores.items()):
            file.add(step, time.time(), [scalar(found.settings.metric, found.history.value(score))])
        file.close()


def to_mlflow(found: Search, where: str) -> None:
    """Log a run for each trial in an experiment named after the folder; a second call adds them again."""
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    try:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param
    except ImportError as error:
        raise _missing("mlflow", "mlflow-skinny", error) from error
    client = MlflowClient(tracking_uri=where)
    name = f"search {found.folder.resolve().name}"
    known = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if known is None else known.experiment_id
    for one in found.history.trials.values():
        run = client.create_run(experiment, run_name=f"trial {one.number}", tags={"tfdist.trial": str(one.number)})
        scores = sorted(one.scores.items())
        metrics = [Metric(found.settings.metric, found.history.value(score), step, step) for step, score in scores]
        client.log_batch(run.info.run_id, metrics=metrics, params=[Param(k, str(v)) for k, v in one.values.items()])
        client.set_terminated(run.info.run_id, status="FAILED" if one.status == "failed" else "FINISHED")


def _listed(trial: Trial) -> str:
    return "\n".join(f"    {name} = {value!r}" for name, value in trial.values.items())
