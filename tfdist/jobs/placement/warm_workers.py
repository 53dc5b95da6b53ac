"""Starts the workers of a job from the warm process of the user (`tfdist warm`), where one runs that fits."""

import os
import sys
from collections.abc import Callable, Mapping

from tfdist.errors import TfdistError
from tfdist.jobs.output import tf_log_filter
from tfdist.jobs.placement.local_placement import Child, started_anew
from tfdist.jobs.plan.launch_config import LaunchConfig
from tfdist.jobs.plan.worker_spec import WorkerSpec
from tfdist.processes import warm_client
from tfdist.processes.job_resources import Guard
from tfdist.processes.surroundings import of_imports
from tfdist.variables import NO_WARM, PREFIX

_PARENT = "--parent"


class WarmWorkers:
    """Forks workers from a keeper, which the first of them makes the warm process fork."""

    def __init__(self, config: LaunchConfig, guard: Guard, say: Callable[[str], None]) -> None:
        self._config, self._guard, self._say = config, guard, say
        self._keeper: warm_client.Keeper | None = None
        self._is_asked = config.no_warm or NO_WARM.read(os.environ) or sys.platform != "linux"
        self._forks = False
        self._fits: dict[str, str] = {}

    def start(self, spec: WorkerSpec, environment: Mapping[str, str], streams: tuple[int, int, int]) -> Child:
        """Start a worker as `started_anew` does, or by a fork."""
        if not self._is_asked:
            self._is_asked = True
            self._find(environment)
        if self._keeper is not None and self._forks and of_imports(environment) == self._fits:
            stdin, stdout, stderr = streams
            argv = _with_parent(spec.argv, self._keeper.pid)
            try:
                kept = self._keeper.spawn(argv, environment, stdin=stdin, stdout=stdout, stderr=stderr)
            except TfdistError:
                self._forks = False  # it stays the parent of the workers that it has
            else:
                return Child(pid=kept.pid, collect=kept.collect, ended=kept.ended)
        return started_anew(spec, environment, streams)

    def close(self) -> None:
        """End the keeper, which no worker outlives."""
        if self._keeper is not None:
            self._keeper.close()
            self._guard.forget(self._keeper.pid)
            self._keeper = None

    def _find(self, environment: Mapping[str, str]) -> None:
        config = self._config
        folder = os.getcwd() if config.is_module else os.path.dirname(os.path.realpath(config.target))
        try:
            self._keeper = warm_client.keeper(os.environ, environment, folder)
        except (TfdistError, OSError) as error:
            self._say(f"workers are started without the warm process: {error}")
        if self._keeper is not None:
            self._forks, self._fits = True, of_imports(environment)
            self._guard.watch(self._keeper.pid)
            self._say(f"workers are forked from the warm process {self._keeper.warm}")


def warm_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a warm process: that of a worker, but for what differs between jobs."""
    own = {name: value for name, value in environ.items() if name != "TF_CONFIG" and not name.startswith(PREFIX)}
    return {**own, **tf_log_filter.variables(own, all_logs=False), "PYTHONUNBUFFERED": "1"}


def _with_parent(argv: tuple[str, ...], keeper: int) -> tuple[str, ...]:
    """The command of a worker whose parent is a keeper, and no more the agent."""
    if argv[2:3] != (_PARENT,):
        return argv
    return (*argv[:3], f"{argv[3]}:{keeper}", *argv[4:])
