"""Values from Optuna's tree-structured Parzen estimator, which gets the history before each trial.

The study is made anew each time, so the history alone decides; the journal has the suggested values.
"""

from tfdist.errors import MissingDependencyError
from tfdist.tune.search.search_history import WORST, History
from tfdist.tune.search.search_space import Choice, Parameter, Range, Space, Value


def suggested(space: Space, history: History, *, trial: int, seed: int) -> dict[str, Value]:
    try:
        import optuna
    except ImportError as error:
        raise MissingDependencyError(
            "--sampler tpe needs Optuna, which is not installed: python -m pip install 'tfdist[search]'", name="optuna"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = optuna.samplers.TPESampler(seed=seed + trial, constant_liar=True)
    study = optuna.create_study(sampler=sampler)
    distributions = {name: _distribution(optuna, one) for name, one in space.items()}
    for one in history.trials.values():
        params = {name: value for name, value in one.values.items() if name in space}  # the script may declare more
        told = {"params": params, "distributions": distributions}
        if one.scores:  # infinity where it diverged: what Optuna is not told of looks promising to it
            steps = {step: score for step, score in one.scores.items() if score < WORST}
            study.add_trial(optuna.trial.create_trial(value=one.best, intermediate_values=steps, **told))
        else:
            study.add_trial(optuna.trial.create_trial(state=optuna.trial.TrialState.RUNNING, **told))
    return dict(study.ask(distributions).params)


def _distribution(optuna: object, parameter: Parameter) -> object:
    found = optuna.distributions  # type: ignore[attr-defined]
    if isinstance(parameter, Choice):
        return found.CategoricalDistribution(parameter.values)
    assert isinstance(parameter, Range)
    if parameter.is_log and parameter.step is not None:  # Optuna has no factors
        return found.CategoricalDistribution(tuple(parameter.points() or ()))
    kind = found.IntDistribution if parameter.is_integer else found.FloatDistribution
    bounds = (int(parameter.low), int(parameter.high)) if parameter.is_integer else (parameter.low, parameter.high)
    step = parameter.step or (1 if parameter.is_integer else None)
    return kind(*bounds, log=parameter.is_log, step=int(step) if parameter.is_integer and step else step)
