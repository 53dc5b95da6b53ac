"""The settings of `tfdist search`, checked when they are made, and the scheduler and history that follow from them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from tfdist.cluster import strategy_table
from tfdist.errors import ConfigError, CorruptDataError
from tfdist.jobs.launchers.launcher_table import LAUNCHERS
from tfdist.options import check, option
from tfdist.tune.search import search_schedulers as schedulers
from tfdist.tune.search.search_history import History
from tfdist.tune.search.search_space import Parameter, Values, drawn, from_json, grid, to_json
from tfdist.validation import integer

FORMAT = 1
SCHEDULERS = ("asha", "hyperband", "median", "population", "random", "grid")
SAMPLERS = ("random", "tpe")
_LOWER = ("loss", "error", "mse", "mae", "mape", "msle", "rmse", "perplexity", "divergence")
_HIGHER = ("acc", "auc", "precision", "recall", "f1", "iou", "bleu", "r2", "score", "similarity", "positives")


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """The settings of a search.

    Raises:
        ConfigError: a value is not allowed.
    """

    target: str  # the script, the name of a module, or the name of a function
    arguments: tuple[str, ...] = ()  # the arguments of the script
    is_module: bool = option(False, "SCRIPT is the name of a module.", flags=("-m",))  # whether `target` is a module
    # the parameters by name; empty: the script declares them
    space: Mapping[str, Parameter] = field(default_factory=dict)
    metric: str = option("val_loss", "Metric by which trials are compared.", metavar="NAME")
    mode: str = option("auto", "auto: by the metric's name.", choices=("auto", "min", "max"))
    scheduler: str = option("asha", "Rule for which trials continue.", choices=SCHEDULERS)
    sampler: str = option("random", "Sampler of values.", choices=SAMPLERS)
    trials: int | None = option(
        None, "Trials, or members of a population.  [default: 64; 16; a grid: all]", kind=int, metavar="N", minimum=1
    )
    epochs: int = option(27, "Epochs of a trial that is never stopped.", metavar="R", minimum=1)
    min_epochs: int = option(1, "Epochs before the first comparison.", metavar="R", minimum=1)
    eta: int = option(3, "One of ETA trials continues.", metavar="ETA", minimum=2)
    perturb: tuple[str, ...] = option((), "Float parameters that clones change.", metavar="NAME")
    seed: int = option(0, "Seed of the values.", metavar="N", minimum=0)
    slots: int | None = option(None, "Trials at the same time.  [default: as cores]", kind=int, minimum=1)
    workers_per_trial: int = option(1, "Workers of a trial: tfdist run -n N.", metavar="N", minimum=1)
    strategy: str | None = option(None, "Strategy of trials.", kind=str, metavar="NAME")
    hosts: str | None = option(None, "Where trials run, as a:2,b:2.", kind=str, metavar="HOSTS")
    launcher_name: str | None = option(
        None,
        "Launcher: slurm, ray, kubernetes, ...",
        kind=str,
        flags=("--engine",),
        choices=tuple(LAUNCHERS),
        metavar="NAME",
    )
    run_options: str | None = option(None, "More options of tfdist run for each trial.", kind=str, metavar="OPTIONS")
    gpus_per_worker: int | None = option(
        None, "GPUs of its host that each worker of a trial sees.", kind=int, metavar="G", minimum=0, is_hidden=True
    )
    restarts: int = option(1, "Restarts of a trial without progress.", metavar="K", minimum=0)

    def __post_init__(self) -> None:
        check(self)
        if self.strategy is not None:
            strategy_table.get(self.strategy)  # raises for an unknown name
        if self.min_epochs > self.epochs:
            raise ConfigError(
                f"--min-epochs is {self.min_epochs} and --epochs is {self.epochs}; trials are compared before they "
                "end. Lower the first, or raise the second.",
                name="--min-epochs",
                received=self.min_epochs,
            )
        if self.scheduler == "grid":
            self._require_space("a grid")
            if self.sampler != "random":
                raise ConfigError(
                    "--sampler is tpe, and a grid has all its values; use another scheduler.", name="--sampler"
                )
            grid(self.space)
        if self.sampler == "tpe":
            self._require_space("tpe")
        unknown = [name for name in self.perturb if self.space and name not in self.space]
        if unknown:
            raise ConfigError(
                f"--perturb names {unknown[0]!r}, which --space lacks.", name="--perturb", received=unknown[0]
            )
        _ = self.direction

    def _require_space(self, what: str) -> None:
        if not self.space:
            raise ConfigError(
                f"{what} needs the space before the first trial: give each parameter of the script as --space "
                "NAME=RANGE.",
                name="--space",
            )

    @property
    def direction(self) -> Literal["min", "max"]:
        """Whether a lower or a higher metric is better."""
        if self.mode != "auto":
            return "max" if self.mode == "max" else "min"
        words = self.metric.lower()
        lower, higher = (any(one in words for one in known) for known in (_LOWER, _HIGHER))
        if lower == higher:
            raise ConfigError(
                f"--metric is {self.metric!r}, whose name does not say whether less or more is better: pass --mode min "
                "or --mode max.",
                name="--mode",
                received=self.metric,
            )
        return "min" if lower else "max"

    @cached_property
    def _grid(self) -> list[dict[str, Any]]:
        return grid(self.space)

    @property
    def trial_count(self) -> int:
        if self.scheduler == "grid":
            return min(self.trials or len(self._grid), len(self._grid))
        return self.trials or (16 if self.scheduler == "population" else 64)

    def make_scheduler(self) -> schedulers.Scheduler:
        common: dict[str, Any] = {"sampler": self._sample, "trials": self.trial_count}
        rungs = schedulers.rungs_of(self.epochs, self.min_epochs, self.eta)
        match self.scheduler:
            case "asha":
                return schedulers.Asha(**common, rungs=rungs, eta=self.eta)
            case "hyperband":
                return schedulers.Hyperband(**common, rungs=rungs, eta=self.eta)
            case "median":
                return schedulers.Median(**common, epochs=self.epochs, least=self.min_epochs)
            case "population":
                return schedulers.Population(
                    **common,
                    epochs=self.epochs,
                    interval=self.min_epochs,
                    seed=self.seed,
                    space=self.space,
                    perturbed=self.perturb,
                )
        return schedulers.Complete(**common, epochs=self.epochs)

    def _sample(self, trial: int, history: History) -> Values | None:
        if self.scheduler == "grid":
            return self._grid[trial]
        if not self.space:
            return None
        if self.sampler == "tpe":
            from tfdist.tune.search.optuna_sampler import suggested

            return suggested(self.space, history, trial=trial, seed=self.seed)
        return drawn(self.space, seed=self.seed, trial=trial)

    def make_history(self, slots: int) -> History:
        return History(slots=slots, mode=self.direction, restarts=self.restarts)

    def to_json(self) -> str:
        content = {one.name: getattr(self, one.name) for one in fields(self)}
        content["space"] = {name: to_json(one) for name, one in self.space.items()}
        return json.dumps({"format": FORMAT, **content}, indent=1)

    @classmethod
    def from_json(cls, text: str, *, path: Path) -> "SearchSettings":
        try:
            content = json.loads(text)
            version = content.pop("format")
            integer("format", version, minimum=1, maximum=FORMAT)
            content["space"] = {name: from_json(one) for name, one in content["space"].items()}
            lists = {name: tuple(content[name]) for name in ("arguments", "perturb")}
            return cls(**{**content, **lists})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptDataError(
                f"{path} has no settings of a search that this tfdist reads: {error}", path=path
            ) from error
