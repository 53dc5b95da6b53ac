"""Searches in folders: start, resume and read them."""

import functools
import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfdist.errors import ConfigError, ConfigTypeError, MissingFileError
from tfdist.jobs.notebooks.function_transfer import send_function
from tfdist.jobs.notebooks.notebook_job import WORKER_MODULE, worker_environment
from tfdist.processes.job_resources import guarded
from tfdist.storage.files import write_whole
from tfdist.tune.search import search_journal
from tfdist.tune.search.search_history import End, Event, History, Trial
from tfdist.tune.search.search_loop import Loop
from tfdist.tune.search.search_settings import SearchSettings
from tfdist.tune.search.search_space import from_python
from tfdist.tune.search.search_trial import HyperParameters, parameters, requested, write_report
from tfdist.tune.search.trial_jobs import Slot, slots_of
from tfdist.tune.search.trial_slots import TrialSlots, forget_trials
from tfdist.validation import nearest, shown

SETTINGS, JOURNAL, CODE = "search.json", "journal.jsonl", "function.pickle"
Tell = Callable[[Event, History], None]
_LOOKED_AT = 3  # trials, before a name that none has asked for is refused
_OF_SCRIPTS = (
    *("target", "arguments", "is_module", "strategy", "workers_per_trial"),
    *("hosts", "launcher_name", "run_options", "gpus_per_worker"),
)


@dataclass(frozen=True)
class Search:
    """A search that has run, or has been read from its folder.

    Attributes:
        folder: the folder of the search.
        settings: the settings of the search.
        history: the history, with all trials.
    """

    folder: Path
    settings: SearchSettings
    history: History

    @property
    def best(self) -> Trial | None:
        """The trial with the best value of the metric; None if no trial has reported one."""
        return self.history.best

    def table(self) -> list[dict[str, Any]]:
        """Return a row for each trial: number, status, epochs, best and last value, and parameters.

        Returns:
            The rows, in the order of the trials.
        """
        return [self._row(one) for one in self.history.trials.values()]

    def _row(self, trial: Trial) -> dict[str, Any]:
        last = trial.scores[trial.step] if trial.scores else float("inf")
        return {
            "trial": trial.number,
            "status": trial.status.value,
            "epochs": trial.step,
            "best": self.history.value(trial.best),
            "last": self.history.value(last),
            "parent": trial.lineage[-1][1] if trial.lineage else None,
            **{f"values/{name}": value for name, value in trial.values.items()},
        }


def begin(settings: SearchSettings, folder: Path, *, tell: Tell = lambda event, history: None) -> Search:
    """Begin a search in a folder that has none, and run it."""
    _require_new(folder)
    _slots_of(settings)  # refuses what cannot be, before anything is written
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / SETTINGS, settings.to_json() + "\n")
    return go_on(folder, tell=tell)


def _slots_of(settings: SearchSettings, count: int | None = None) -> tuple[Slot, ...]:
    return slots_of(settings, count or settings.slots, os.environ, len(os.sched_getaffinity(0)))


def _require_new(folder: Path) -> None:
    if (folder / SETTINGS).exists():
        raise ConfigError(
            f"{folder} has a search already. Go on with it (tfdist search resume {folder}, or run(..., resume=True)), "
            "or name another folder.",
            name="folder (--output)",
            path=folder,
        )


def go_on(folder: Path, *, slots: int | None = None, tell: Tell = lambda event, history: None) -> Search:
    """Resume a search after the last event of its journal."""
    search_journal.repair(folder / JOURNAL)
    found = opened(folder)
    settings, history = found.settings, found.history
    places = _slots_of(settings, slots)
    history.slots = len(places)
    forget_trials(folder, len(history.trials))
    functional = settings.target == WORKER_MODULE and settings.is_module

    def told(event: Event) -> None:
        tell(event, history)
        if isinstance(event, End):
            require_asked(settings, history)

    with search_journal.Journal(folder / JOURNAL) as journal, guarded(secrets.token_hex(8)) as guard:
        environment = worker_environment() if functional else {}
        runner = TrialSlots(settings, folder.resolve(), places, guard, environment=environment)
        try:
            Loop(settings.make_scheduler(), runner, history, write=journal.write, tell=told).run()
        finally:
            runner.close()
    return found


def require_asked(settings: SearchSettings, history: History) -> None:
    """Refuse a space with a name that no script has asked for: its values would change nothing."""
    ended = [one for one in history.trials.values() if one.results]
    if len(ended) < min(_LOOKED_AT, settings.trial_count):
        return
    asked = {name for one in ended for name in one.declared}
    missing = [name for name in settings.space if name not in asked]
    if missing:
        raise ConfigError(
            f"--space has {missing[0]!r}, and none of the first {len(ended)} trials has asked for it. Let the script "
            f"take its value from tfdist.search.parameters(), or leave it out.{nearest(missing[0], asked)}",
            name="--space",
            received=missing[0],
        )


def opened(folder: Path) -> Search:
    """Return the search in a folder with its progress so far; it may be running."""
    try:
        text = (folder / SETTINGS).read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFileError(
            f"{folder} has no search ({SETTINGS} is missing). Name the folder that `tfdist search --output` has made."
        ) from None
    settings = SearchSettings.from_json(text, path=folder / SETTINGS)
    history = settings.make_history(settings.slots or 1)
    for event in search_journal.read(folder / JOURNAL):
        history.add(event)
    return Search(folder, settings, history)


def run(
    function: Callable[[HyperParameters], Any],
    space: Mapping[str, Any] | None = None,
    *,
    folder: str | os.PathLike[str],
    resume: bool = False,
    on_event: Tell = lambda event, history: None,
    **options: Any,
) -> Search:
    """Search the best parameters of a function, from a program or a notebook.

    Each trial calls the function in a process of its own. The function reports through ``callbacks`` or `report`, or
    returns the metric. Ctrl-C ends the trials; ``resume=True`` continues.

    Args:
        function: the function, which is called with the parameters of the trial. It is sent as by
            `tfdist.jobs.notebook`.
        space: the parameters by name, as ranges such as "log:1e-4:1e-1" or lists of values; None: the function declares
            them.
        folder: the folder of the search, new unless it is resumed.
        resume: whether to resume the search in the folder, with the options of that search.
        on_event: a function that is called with each event and the history.
        options: the options `metric`, `mode`, `scheduler`, `sampler`, `trials`, `epochs`, `min_epochs`, `eta`,
            `perturb`, `seed`, `slots`, `restarts`: see ``tfdist search --help``.
    Returns:
        The search, with its best trial and the table of all trials.
    Raises:
        ConfigError: an option is not allowed, or the folder already has a search.
        UnsupportedError: the function cannot be sent.
        WorkerFailedError: the first trials have failed.

    Example:
        >>> def train(hp):
        ...     return (hp.Float("x", -2.0, 2.0) - 1) ** 2
        >>> found = run(train, folder="search", metric="loss", scheduler="random", trials=4)      # doctest: +SKIP
        >>> found.best.values                                                                     # doctest: +SKIP
        {'x': 0.73}
    """
    if not callable(function):
        raise ConfigTypeError(f"function is {shown(function)}, which cannot be called; pass a function of hp.")
    place = Path(folder)
    known = SearchSettings.__dataclass_fields__.keys() - {*_OF_SCRIPTS, "space"}
    unknown = sorted(options.keys() - known)
    if unknown:
        raise ConfigError(
            f"{unknown[0]} is not an option of run(). It has {', '.join(sorted(known))}.", name=unknown[0]
        )
    if resume:
        return go_on(place, tell=on_event)
    code = (place / CODE).absolute()
    known_options: dict[str, Any] = {**options, "perturb": tuple(options.get("perturb", ()))}
    settings = SearchSettings(
        target=WORKER_MODULE,
        is_module=True,
        arguments=(str(code), f"{code}.result"),
        space=from_python(space or {}),
        **known_options,
    )
    _require_new(place)
    place.mkdir(parents=True, exist_ok=True)
    code.unlink(missing_ok=True)  # of a call that was refused after it
    send_function(code, functools.partial(_trial, function), ())
    return begin(settings, place, tell=on_event)


def _trial(function: Callable[[HyperParameters], Any]) -> None:
    """Call the function in the process of a trial; a number that it returns is reported for the last epoch."""
    value = function(parameters())
    request = requested()
    if request is not None and value is not None and not isinstance(value, bool) and hasattr(value, "__float__"):
        write_report(request, {request.metric: float(value)}, request.last)
