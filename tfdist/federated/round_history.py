"""The records of a run's rounds, one JSON line each, and a picture of their curves."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tfdist.errors import CorruptDataError
from tfdist.validation import counted

ROUNDS = "rounds.jsonl"
PICTURE = "rounds.png"


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """The record of one round of a run.

    Attributes:
        round: the number of the round, from 0.
        attempt: the number of the attempt that counted, from 0.
        selected: the number of clients that were asked.
        used: the number of updates that were aggregated.
        examples: the number of examples of the clients whose updates were used.
        train: the metrics of the clients' training, weighted by examples.
        evaluation: the metrics of the new weights; empty if they were not evaluated.
        seconds: the seconds since the end of the round before.
        bytes: the bytes of the updates that were used, under masks or not, without headers.
        epsilon: the epsilon spent until the end of the round; None without a budget of privacy.
        clipped_updates: the number of used updates that were scaled down to a norm; None if the server has no norm.
        clipped_values: the number of clipped values in all updates of a secure sum, as clients report; None without a
            secure sum, and if clients add noise.
    """

    round: int
    attempt: int
    selected: int
    used: int
    examples: int
    train: Mapping[str, float]
    evaluation: Mapping[str, float]
    seconds: float
    bytes: int | None = None
    epsilon: float | None = None
    clipped_updates: int | None = None
    clipped_values: int | None = None

    def to_json(self) -> str:
        """Return the record as a line of JSON, without its newline."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps(fields)


def read_rounds(path: Path) -> list[RoundRecord]:
    """Return the records of a file; a last line that was cut off is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")
    try:
        return [RoundRecord(**json.loads(line)) for line in lines[:-1]]
    except (ValueError, TypeError) as error:
        raise CorruptDataError(f"{path} is not a record of rounds: {error}", path=path) from error


def draw(records: Sequence[RoundRecord], path: Path) -> None:
    """Draw the curves of all metrics over rounds, of training and of evaluation."""
    from tfdist.planner.plot_style import figure_of, plain

    names = list(dict.fromkeys(name for one in records for name in (*one.train, *one.evaluation)))
    figure = figure_of(4.5 * max(len(names), 1), 3.2)
    for index, name in enumerate(names):
        axes = figure.add_subplot(1, len(names), index + 1)
        for label, key in (("clients' training", "train"), ("evaluation", "evaluation")):
            points = [(one.round + 1, getattr(one, key)[name]) for one in records if name in getattr(one, key)]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, marker="." if len(points) < 30 else None)
        axes.set_xlabel("round")
        axes.set_title(name)
        axes.legend(frameon=False)
        plain(axes)
    figure.savefig(path)


def shown(record: RoundRecord) -> str:
    """Return a record as a line for a terminal."""
    metrics: dict[str, Any] = {**record.train, **{f"test {name}": value for name, value in record.evaluation.items()}}
    told = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    spent = "" if record.epsilon is None else f"epsilon {record.epsilon:.4g}"
    counts = (("updates", record.clipped_updates), ("values", record.clipped_values))
    clipped = [f"{what} clipped: {count:,}" for what, count in counts if count]
    parts = (
        f"{counted(record.used, 'client')}, {counted(record.examples, 'example')}",
        told,
        *clipped,
        spent,
        f"{record.seconds:.2f} s",
    )
    return f"round {record.round + 1}: {'; '.join(filter(None, parts))}"
