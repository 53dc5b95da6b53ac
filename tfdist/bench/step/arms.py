"""What the worker processes of a step benchmark run: the same model and data, trained in one of several ways.

- ``tensorflow loop``: TensorFlow's own strategy, in a hand-written loop;
- ``horovod loop``: Horovod's `DistributedGradientTape` around a plain model, in the loop of its synthetic benchmark;
- ``tfdist loop``: tfdist's strategy, in the same loop, which has none of what `fit` needs to be right;
- ``tfdist fit``: tfdist's strategy, Keras' `compile` and `fit`;
- ``tfdist fit, several steps``: the same with ``steps_per_execution``.
"""

from tfdist.bench.workers import loops, strategies

# arm -> runs that many steps and returns their seconds; a worker process keeps what it has built
_prepared: dict[str, loops.Runner] = {}


def prepare(arm: str, strategy: str, model: str, global_batch_size: int, steps_per_execution: int, steps: int) -> None:
    """Build the model of an arm and run it for so many steps, which trace and warm it."""
    if arm not in _prepared:
        _prepared[arm] = _runner(arm, strategy, model, global_batch_size, steps_per_execution)
    _prepared[arm](steps)


def measure(arm: str, steps: int) -> float:
    """Return the seconds that this worker needs for so many steps."""
    return _prepared[arm](steps).seconds


def _runner(arm: str, strategy: str, model: str, global_batch_size: int, steps_per_execution: int) -> loops.Runner:
    if arm == "tensorflow loop":
        return loops.tensorflow(strategies.of_tensorflow(strategy), model, global_batch_size)
    if arm == "horovod loop":
        return loops.horovod(model, global_batch_size)
    if arm == "tfdist loop":
        return loops.tensorflow(strategies.of_tfdist(strategy), model, global_batch_size)
    return loops.fit(strategies.of_tfdist(strategy), model, global_batch_size, steps_per_execution=steps_per_execution)
