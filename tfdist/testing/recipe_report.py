"""The report of a recipe: a short summary, also as JSON, and a plot of the loss curves.

Example:
    >>> summary = Summary(strategy="single device", accuracy=0.98, loss=0.07, steps=400, workers=1, replicas=1)
    >>> summary.lines()[0]
    'test accuracy        0.9800'
"""

import json
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tfdist import cluster as clusters
from tfdist.planner.plot_style import figure_of
from tfdist.validation import counted

_TRAINING, _VALIDATION = "#1f5f9e", "#d1602b"


class EpochClock(keras.callbacks.Callback):
    """A callback that measures training examples per second, without validation and the first epoch, which traces."""

    def __init__(self, examples: int) -> None:
        super().__init__()
        self._examples = examples
        self._seconds: list[float] = []
        self._began = self._ended = 0.0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Note the time when the last batch ended; validation comes after it."""
        self._ended = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._seconds.append(self._ended - self._began)

    @property
    def examples_per_second(self) -> float | None:
        """The examples per second in the median epoch after the first; None if there was no such epoch."""
        later = self._seconds[1:]
        return self._examples / statistics.median(later) if later else None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of a training: loss in nats and accuracy on the test data; no speed if only one epoch was trained."""

    strategy: str
    accuracy: float
    loss: float
    steps: int
    workers: int
    replicas: int
    examples_per_second: float | None = None

    def lines(self) -> list[str]:
        speed = "one epoch: not measured" if self.examples_per_second is None else f"{self.examples_per_second:,.0f}"
        rows = {
            "test accuracy": f"{self.accuracy:.4f}",
            "test loss": f"{self.loss:.4f}",
            "examples per second": speed,
            "steps": f"{self.steps:,}",
            "workers": f"{self.workers}, {counted(self.replicas, 'replica')} in all",
        }
        return [f"{name:<19}  {value}" for name, value in rows.items()]


def conclude(
    model: keras.Model,
    strategy: tf.distribute.Strategy,
    test: Any,
    *,
    history: Mapping[str, Sequence[float]],
    clock: EpochClock,
    folder: Path,
) -> Summary:
    """Evaluate a recipe's model on all workers; on the chief also print the summary and write its files."""
    loss, accuracy = model.evaluate(test, verbose=0)
    cluster = clusters.from_environment()
    summary = Summary(
        strategy=type(strategy).__name__,
        accuracy=accuracy,
        loss=loss,
        steps=int(model.optimizer.iterations.numpy()),
        workers=cluster.num_workers,
        replicas=strategy.num_replicas_in_sync,
        examples_per_second=clock.examples_per_second,
    )
    if cluster.is_chief:
        files = leave(summary, history, folder)
        lines = ["", *summary.lines(), *(f"wrote                {file}" for file in files)]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
    return summary


def leave(summary: Summary, history: Mapping[str, Sequence[float]], folder: Path) -> list[Path]:
    """Write ``summary.json`` and ``loss.png`` into ``folder``, which is made if it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {name: [float(value) for value in series] for name, series in history.items()}
    text, picture = folder / "summary.json", folder / "loss.png"
    text.write_text(json.dumps({**asdict(summary), "history": values}, indent=2) + "\n", encoding="utf-8")
    draw_loss(summary, values, picture)
    return [picture, text]


def draw_loss(summary: Summary, history: Mapping[str, Sequence[float]], path: Path) -> None:
    """Draw training and validation loss per epoch as a PNG of 1600 x 1000 pixels.

    An epoch's training loss, a mean over its steps, is drawn at its middle; its validation loss at its end.
    """
    figure = figure_of(8, 5)
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes = figure.add_subplot()
    for values, shift, colour, label in (
        (history["loss"], -0.5, _TRAINING, "training"),
        (history["val_loss"], 0.0, _VALIDATION, "validation"),
    ):
        epochs = [epoch + shift for epoch in range(1, len(values) + 1)]
        axes.plot(epochs, values, color=colour, linewidth=2, marker="o", markersize=4, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(0, len(history["loss"]) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.set_xlabel("epoch")
    axes.set_ylabel("cross-entropy loss (nats)")
    axes.grid(which="major", color="#d8d8d8", linewidth=0.8)
    axes.grid(which="minor", color="#eeeeee", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=11)
    replicas = counted(summary.replicas, "replica")
    workers = counted(summary.workers, "worker")
    told = f"{summary.strategy}: {workers}, {replicas}, {summary.steps:,} steps; test accuracy {summary.accuracy:.2%}"
    axes.set_title("Loss on the handwritten digits", loc="left", pad=26, fontsize=15, fontweight="bold")
    axes.text(0, 1.025, told, transform=axes.transAxes, fontsize=10.5, color="#555555")
    figure.savefig(path)
