"""The job of a notebook's function: it is called in worker processes, supervised like a script of `tfdist run`."""

import contextlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from tfdist.errors import ConfigError, ConfigTypeError, DeadlineError, TfdistError, WorkerFailedError
from tfdist.jobs.agent.run_job import names_of, run_to
from tfdist.jobs.notebooks.cell_output import output
from tfdist.jobs.notebooks.function_transfer import name_of, receive_result, send_function
from tfdist.jobs.plan.launch_config import (
    DEFAULT_RESTARTS,
    DEFAULT_SERVERS,
    LaunchConfig,
    check_strategy,
    has_chief,
    require_installed,
    require_variables,
)
from tfdist.jobs.supervision.supervisor_state import Received
from tfdist.processes import job_resources
from tfdist.processes.worker_failure import Outcome
from tfdist.validation import number, shown

WORKER_MODULE = "tfdist.jobs.notebooks.function_worker"


def notebook(
    function: Callable[..., Any],
    *arguments: Any,
    strategy: str | None = "ring",
    workers: int = 2,
    env: Mapping[str, str] | None = None,
    timeout_seconds: float | None = None,
    verbose: bool = False,
    **options: Any,
) -> Any:
    """Call a function in worker processes, from a notebook, a REPL or a script; return the result on the chief.

    Each worker calls ``function(*arguments)``, in a new process, in this working directory and with this `sys.path`;
    there `tfdist.strategies.from_environment()` finds its place in the cluster. The output of workers appears in the
    cell at once, each line with its worker, and the chief's progress bar moves. When the call returns or raises, no
    process and no file of the job is left. An interrupt of the kernel ends all workers (with SIGKILL after
    `grace_seconds`), and so does the end of the kernel, however it ends. This process may or may not have loaded
    TensorFlow.

    The function is sent by value, with the variables of the notebook to which it refers; its changes to them stay in
    the workers. Pass arrays and paths, not tensors and models. The function itself makes everything that is not a plain
    value (a dataset, a file, a strategy), and the strategy first, because it decides how TensorFlow starts. cloudpickle
    sends the function through a file in a directory of this job that no other user may enter: it is this user's code
    for children of this process. No file from elsewhere is ever read in this way. The result comes back likewise.

    Args:
        function: the function, any callable; `functools.partial` gives it arguments by name.
        arguments: the arguments of each call.
        strategy: the registered name for `tfdist.strategies.from_environment()`; None: the strategy that the number of
            workers implies.
        workers: the number of processes, at least 1. With "mirrored" it is 1, and `replicas_per_worker` is the number
            of replicas.
        env: environment variables for the workers, on top of those of this process. TF_CPP_MIN_LOG_LEVEL is 2 (errors
            only) unless either sets it.
        timeout_seconds: the time in seconds after which the workers are ended; None: no limit.
        verbose: whether to report the start and the end of each process.
        options: further options: `replicas_per_worker`, `shares`, `max_restarts`, `min_workers`, `max_workers`,
            `grace_seconds`, `hang_seconds`, `stall_seconds`, `parameter_servers`, `event_file`; see `LaunchConfig` and
            `tfdist run --help`.
    Returns:
        The result of the call on the chief. The chief is worker 0; with parameter servers, only the chief calls the
        function. Results of other workers are dropped.
    Raises:
        WorkerFailedError: a worker has failed; the message names it and has its traceback.
        DeadlineError: the call took longer than `timeout_seconds`.
        KeyboardInterrupt: the kernel was interrupted; the workers have ended.
        UnsupportedError: the function cannot be sent; the message names the variable.
        ConfigError: an option is not allowed.

    Example:
        >>> def train(epochs):
        ...     import keras
        ...     import tfdist
        ...     strategy = tfdist.strategies.from_environment()
        ...     with strategy.scope():
        ...         model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        ...         model.compile("sgd", "mse")
        ...     images, labels = keras.random.normal((64, 4), seed=1), keras.random.normal((64, 1), seed=2)
        ...     return model.fit(images, labels, batch_size=16, epochs=epochs).history
        >>> history = tfdist.jobs.notebook(train, 3, strategy="ring", workers=2)      # doctest: +SKIP
    """
    _require_call(function, arguments)
    if timeout_seconds is not None:
        number("timeout_seconds", timeout_seconds, above=0, maximum=threading.TIMEOUT_MAX)
    events: SimpleQueue[Any] = SimpleQueue()
    reports: list[str] = []
    with contextlib.ExitStack() as stack, _deadline(timeout_seconds, events) as is_late:
        folder = job_resources.claim(stack, "cell")  # private
        code, result = folder / "code", folder / "result"
        config = _config(strategy, workers, env, options, (str(code), str(result)))
        if config.remote is not None:
            if config.remote.demand is None:
                raise ConfigError(
                    "remote has hosts; a function goes to this machine, or to the nodes of Ray "
                    "(tfdist.engines.ray.Trainer). For hosts write a script: tfdist run --hosts"
                )
            config = replace(config, remote=replace(config.remote, call=(str(code), str(result))))
        send_function(code, function, arguments, tensors=False)
        out = output(names_of(config))
        outcome = run_to(
            config, out, events, lambda text, _: reports.append(text), verbose=verbose, if_killed=(folder,)
        )
        if outcome.exit_code == 0 and result.exists():
            return receive_result(result)
    if is_late.is_set() and outcome.received is not None:
        raise DeadlineError(
            f"{name_of(function)} has not returned after {timeout_seconds:g} s (timeout_seconds); its workers were "
            "ended. Give it more time, or None to wait as long as it takes."
        )
    raise _failure(outcome, "\n".join(reports or getattr(out, "said", [])), name_of(function))


def _failure(outcome: Outcome, report: str, name: str) -> BaseException:
    if outcome.received is not None and outcome.received != signal.SIGINT:
        os.kill(os.getpid(), outcome.received)  # as the signal would have done without workers
        return SystemExit(outcome.exit_code)
    if outcome.received is not None:
        return KeyboardInterrupt(f"{name} was interrupted; its workers have ended")
    if outcome.exit_code == 0:
        return TfdistError(
            f"worker 0 ended before {name} had returned, with code 0: sys.exit() or os._exit() was called. Use return."
        )
    worker = outcome.failures[0].worker if outcome.failures else None
    said = report or f"the workers of {name} have failed: look at their output above"
    return WorkerFailedError(said, worker=worker, exit_code=outcome.exit_code)


def _require_call(function: Any, arguments: tuple[Any, ...]) -> None:
    if not callable(function):
        raise ConfigTypeError(
            f"function is {shown(function)}, which cannot be called. Write notebook(train, 3), not notebook(train(3)): "
            "the workers call it."
        )
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of those that are not written in Python have none
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise ConfigTypeError(
            f"{name_of(function)}{signature} cannot be called with {len(arguments)} arguments ({error}). Give them "
            "after the function, in order; functools.partial gives some by name."
        ) from error


def _config(
    strategy: str | None,
    workers: int,
    env: Mapping[str, str] | None,
    options: Mapping[str, Any],
    files: tuple[str, ...],
) -> LaunchConfig:
    known = sorted(LaunchConfig.__dataclass_fields__.keys() - _NOT_OPTIONS)
    unknown = sorted(options.keys() - set(known))
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} is not an option of notebook(). It has env, timeout_seconds, {', '.join(known)}."
        )
    require_variables("env", env or {})
    served = has_chief(strategy, parameter_servers=options.get("parameter_servers"))
    defaults = {"parameter_servers": DEFAULT_SERVERS, "max_restarts": DEFAULT_RESTARTS} if served else {}
    config = LaunchConfig(
        target=WORKER_MODULE,
        is_module=True,
        arguments=files,
        workers=workers,
        strategy=strategy,
        environment={**worker_environment(), **(env or {})},
        **{**defaults, **options},
    )
    check_strategy(config)
    require_installed(config)
    return config


_NOT_OPTIONS = frozenset(("target", "is_module", "arguments", "workers", "strategy", "environment"))


def worker_environment() -> dict[str, str]:
    """Return the variables by which a worker finds the modules of this process."""
    places = [os.path.abspath(place) for place in sys.path if isinstance(place, str) and place]
    variables = {"PYTHONPATH": os.pathsep.join(places)}
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        variables["TF_CPP_MIN_LOG_LEVEL"] = "2"  # errors only: every worker would report its CPU's features
    if os.environ.get("MPLBACKEND", "").startswith("module://"):  # the notebook's, which draws into a cell
        variables["MPLBACKEND"] = "agg"
    return variables


@contextlib.contextmanager
def _deadline(seconds: float | None, events: "SimpleQueue[Any]") -> Iterator[threading.Event]:
    """Ask the job to end after ``seconds``; the yielded event is set then."""
    is_late = threading.Event()
    if seconds is None:
        yield is_late
        return

    def ask() -> None:
        is_late.set()
        events.put(Received(number=signal.SIGTERM))

    timer = threading.Timer(seconds, ask)
    timer.name = "deadline of a call"
    timer.start()
    try:
        yield is_late
    finally:
        timer.cancel()
        timer.join()
