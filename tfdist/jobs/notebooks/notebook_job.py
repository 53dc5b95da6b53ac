"""A function of a notebook as a job: called in worker processes, supervised as `tfdist run` supervises a script."""

import contextlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
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
    """Call a function in worker processes, from a notebook, a REPL or a script; return what the chief's call returns.

    Each worker calls ``function(*arguments)``, in a new process, in this working directory and with this `sys.path`;
    there `tfdist.strategies.from_environment()` finds its place. What they write appears in the cell at once, each line
    with its worker, and the chief's progress bar moves. When the call returns or raises, no process of the job runs and
    no file of it exists. The interrupt of the kernel ends all workers (after `grace_seconds` by SIGKILL), and so does
    the end of the kernel, however it ends. It is no matter whether this process has loaded TensorFlow.

    The function is sent by value, with the variables of the notebook that it refers to; what it changes in them stays
    in the workers. What is no plain value (a dataset, a file, a strategy) it makes itself, and the strategy first,
    because that decides how TensorFlow starts: hand over arrays and paths, not tensors and models. cloudpickle sends
    it, through a file in a directory of this job that no other user may enter: code of this user's for children of this
    process. Nothing that comes from elsewhere is ever read in this way. The result comes back likewise.

    Args:
        function: any callable; `functools.partial` gives it arguments by name.
        arguments: of each call.
        strategy: registered name for `tfdist.strategies.from_environment()`, or None for what the number implies.
        workers: how many processes, at least 1. With "mirrored" it is 1, and `replicas_per_worker` the number of
            replicas.
        env: variables for the workers on top of those of this process. TF_CPP_MIN_LOG_LEVEL is 2 (errors alone) unless
            it is set here or there.
        timeout_seconds: after so many seconds the workers are ended; None waits as long as it takes.
        verbose: whether to tell which processes are started and ended.
        options: `replicas_per_worker`, `shares`, `max_restarts`, `min_workers`, `max_workers`, `grace_seconds`,
            `hang_seconds`, `stall_seconds`, `parameter_servers`, `event_file`: as in `LaunchConfig` and `tfdist run
            --help`.
    Returns:
        What the call has returned on the chief: worker 0, or with parameter servers the chief alone, which calls it.
        What other workers return is dropped.
    Raises:
        WorkerFailedError: a worker has failed; the message names it and has its traceback.
        DeadlineError: the call took longer than `timeout_seconds`.
        KeyboardInterrupt: the kernel was interrupted; the workers have ended.
        UnsupportedError: the function cannot be sent; the message names the variable.
        ConfigError: an option that cannot be.

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
    with _folder() as folder, _deadline(timeout_seconds, events) as is_late:
        code, result = folder / "code", folder / "result"
        config = _config(strategy, workers, env, options, (str(code), str(result)))
        if config.remote is not None:
            if config.remote.demand is None:
                raise ConfigError(
                    "remote has hosts; a function goes to this machine, or to the nodes of Ray "
                    "(tfdist.engines.ray.Trainer). For hosts write a script: tfdist run --hosts"
                )
            config = replace(config, remote=replace(config.remote, call=(str(code), str(result))))
        send_function(code, function, arguments)
        out = output(names_of(config))

        def report(text: str, _give_up: Callable[[], bool]) -> None:
            reports.append(text)

        outcome = run_to(config, out, events, report, verbose=verbose, if_killed=(folder,))
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
    """Variables by which a worker finds the modules of this process."""
    places = [os.path.abspath(place) for place in sys.path if isinstance(place, str) and place]
    variables = {"PYTHONPATH": os.pathsep.join(places)}
    if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
        variables["TF_CPP_MIN_LOG_LEVEL"] = "2"  # errors only: every worker would report its CPU's features
    if os.environ.get("MPLBACKEND", "").startswith("module://"):  # the notebook's, which draws into a cell
        variables["MPLBACKEND"] = "agg"
    return variables


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(job_resources.claimed("cell"))  # private
        except OSError as error:
            raise TfdistError(
                f"no temporary directory can be made ({error}). Set TMPDIR to one that is writable."
            ) from error
        yield folder


@contextlib.contextmanager
def _deadline(seconds: float | None, events: "SimpleQueue[Any]") -> Iterator[threading.Event]:
    """Ask the job to end after ``seconds``; the yielded event is set then."""
    is_late = threading.Event()

    def ask() -> None:
        is_late.set()
        events.put(Received(number=signal.SIGTERM))

    timer = threading.Timer(0.0 if seconds is None else seconds, ask)
    if seconds is not None:
        timer.start()
    try:
        yield is_late
    finally:
        if seconds is not None:
            timer.cancel()
            timer.join()
