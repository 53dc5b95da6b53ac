"""The page of a job in a terminal, from a snapshot."""

import time
from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from tfdist.monitor.verdict.step_parts import Part
from tfdist.monitor.watch.snapshot import Snapshot, WorkerView, gpus, newest, sentence

COLORS = {
    Part.INPUT.label: "yellow",
    Part.FORWARD.label: "green",
    Part.BACKWARD.label: "cyan",
    Part.COMPUTE.label: "green",
    Part.WAIT.label: "red",
    Part.COMMUNICATION.label: "magenta",
    Part.UPDATE.label: "blue",
    Part.CHECKPOINT.label: "bright_black",
    Part.PYTHON.label: "white",
}
_NARROWEST, _WIDEST = 10, 48  # of a bar, in columns


def page(shown: Snapshot) -> RenderableType:
    state = "" if shown.is_running else ", ended"
    head = Text(f"job {shown.job}, start {shown.start}{state}, {time.strftime('%H:%M:%S', time.localtime(shown.time))}")
    pieces: list[RenderableType] = [head, _workers(shown)]
    pieces += [Text(f"worker {one.worker}: {used}") for one in shown.workers if (used := gpus(one.resources))]
    if any(worker.parts for worker in shown.workers):
        pieces.append(_legend(shown))
    elif shown.is_running and not shown.workers:
        pieces.append(Text("no worker has been started yet", style="bright_black"))
    elif shown.is_running:
        pieces.append(Text("no record of steps: start the job with `tfdist run --monitor`", style="bright_black"))
    pieces += [Text(line, style="bold" if line.startswith("verdict") else "") for line in shown.verdict]
    for event in newest(shown.events):
        when = time.strftime("%H:%M:%S", time.localtime(float(event.get("time", 0))))
        style = "red" if event.get("event") == "failed" else "bright_black"
        pieces.append(Text(f"{when}  {sentence(event)}", style=style))
    return Group(*pieces)


def _workers(shown: Snapshot) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for name in ("worker", "does", "step", "steps/s", "loss", "memory", "CPU", "step ms"):
        table.add_column(name, justify="left" if name == "does" else "right", no_wrap=True)
    table.add_column("parts")  # the one that may be narrower
    longest = max((sum(one.parts.values()) for one in shown.workers), default=0.0)
    for one in shown.workers:
        table.add_row(*one.cells.values(), _Bar(one, longest))
    return table


class _Bar:
    def __init__(self, one: WorkerView, longest: float) -> None:
        self._worker = one
        self._longest = longest

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(_NARROWEST, _WIDEST).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield bar(self._worker, self._longest, options.max_width)


def bar(one: WorkerView, longest: float, width: int) -> Text:
    text, done, total = Text(), 0, 0.0
    for label, seconds in one.parts.items():
        total += seconds
        reached = round(width * total / longest) if longest > 0 else 0
        text.append("█" * (reached - done), style=COLORS.get(label, ""))
        done = reached
    return text


def _legend(shown: Snapshot) -> Text:
    text = Text()
    there = {label for one in shown.workers for label, seconds in one.parts.items() if seconds > 0}
    for label, color in COLORS.items():
        if label in there:
            text.append("█ ", style=color)
            text.append(f"{label}  ")
    hidden = max((one.hidden for one in shown.workers), default=0.0)
    if hidden > 0:
        text.append(f"(communication beside the backward pass: {1e3 * hidden:.1f} ms)", style="bright_black")
    return text
